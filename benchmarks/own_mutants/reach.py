"""Which fast tests reach which line of the modules that are mutated, and how long each takes.

The tests run once in this process, one context of coverage.py for each. Tests that start a process are left out. What
a test keeps in a cache for the next is forgotten between files, so a file's tests together reach what each rests on.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

import coverage
import msgspec
import pytest

from benchmarks.own_mutants.drawing import MODULES, ROOT, path_of

__all__ = ["ROOMS", "Reach", "forget_cached", "without_processes"]

ROOMS = tuple(
    f"tests/{room}"
    for room in (
        *("judge", "bounds", "oracle", "campaign", "gate", "certificate", "ranks", "schedule", "case"),
        *("spec", "report", "execute", "contract", "observe", "wrappers", "mutations", "commands", "export"),
    )
)
"""Folders of the tests that are asked."""


Lines = Mapping[str, Mapping[str, Collection[str]]]
"""By module and line the names of tests."""


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the tests showed."""

    product: str
    """The digest of what is tested."""
    files: Mapping[str, str]
    """The digests of the files of tests."""
    seconds: Mapping[str, float]
    """Processor time of each test that passed and started no process, in the order of the run."""
    lines: Mapping[str, Mapping[str, tuple[int, ...]]]
    """By module and line, which tests (their numbers in that order) ran it."""

    def tests(self, module: str, first: int, last: int) -> list[str]:
        """The tests that run a line from `first` to `last`, those of the cheapest files first."""
        names = list(self.seconds)
        ran = self.lines.get(module, {})
        found = {number for line in range(first, last + 1) for number in ran.get(str(line), ())}
        return self.ordered([names[number] for number in sorted(found)])

    def of_module(self, module: str) -> list[str]:
        """The tests that run any line of a module."""
        names = list(self.seconds)
        found = {number for numbers in self.lines.get(module, {}).values() for number in numbers}
        return self.ordered([names[number] for number in sorted(found)])

    def beside(self, tests: Sequence[str]) -> list[str]:
        """The other tests of the same files, which may rest on what those have kept."""
        files = {file_of(test) for test in tests}
        left = set(self.seconds) - set(tests)
        return self.ordered([test for test in self.seconds if test in left and file_of(test) in files])

    def ordered(self, tests: Sequence[str]) -> list[str]:
        """The same tests by file, the file first that takes the least time."""
        cost: dict[str, float] = {}
        for test in tests:
            cost[file_of(test)] = cost.get(file_of(test), 0.0) + self.seconds[test]
        return sorted(tests, key=lambda test: (cost[file_of(test)], file_of(test)))


def file_of(test: str) -> str:
    """The file of a test's name."""
    return test.partition("::")[0]


def _digest(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()


def _product() -> str:
    folders = ("pipeconform", "suites", "reference_impl")
    return _digest(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def _test_files() -> dict[str, str]:
    found = sorted(file for room in ROOMS for file in (ROOT / room).rglob("test_*.py"))
    return {file.relative_to(ROOT).as_posix(): _digest([file]) for file in found}


def known(path: Path) -> Reach:
    """The stored map; what changed since is mapped again: all if the product did, else the files of tests that did."""
    product, files = _product(), _test_files()
    stored = Reach(product=product, files={}, seconds={}, lines={})
    if path.exists():
        read = msgspec.json.decode(path.read_bytes(), type=Reach)
        stored = read if read.product == product else stored
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = _only(stored, files)
    for room in ROOMS:
        changed = [name for name in files if name.startswith(f"{room}/") and name not in stored.files]
        if changed:
            added = {**stored.files, **{name: files[name] for name in changed}}
            stored = msgspec.structs.replace(_joined(stored, *_run(changed)), files=added)
            path.write_bytes(msgspec.json.encode(stored))
    return stored


def _only(reach: Reach, files: Mapping[str, str]) -> Reach:
    """The map of the files that are as they were."""
    same = {name: digest for name, digest in reach.files.items() if files.get(name) == digest}
    names = [test for test in reach.seconds if file_of(test) in same]
    numbers = {
        number: names.index(test) for number, test in enumerate(reach.seconds) if file_of(test) in same
    }
    lines = {
        module: {
            line: tuple(numbers[number] for number in tests if number in numbers)
            for line, tests in by_line.items()
        }
        for module, by_line in reach.lines.items()
    }
    seconds = {name: reach.seconds[name] for name in names}
    return Reach(product=reach.product, files=same, seconds=seconds, lines=lines)


def _joined(old: Reach, seconds: Mapping[str, float], lines: Lines) -> Reach:
    """A map, and other tests."""
    both = {**old.seconds, **seconds}
    numbers = {name: number for number, name in enumerate(both)}
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for module in MODULES:
        before, after = old.lines.get(module, {}), lines.get(module, {})
        found[module] = {
            line: (
                *before.get(line, ()),
                *sorted(numbers[test] for test in after.get(line, ()) if test in numbers),
            )
            for line in sorted({*before, *after}, key=int)
        }
    return Reach(product=old.product, files=old.files, seconds=both, lines=found)


def forget_cached() -> None:
    """Empty every `functools.cache`."""
    for one in gc.get_objects():
        if type(one) is functools._lru_cache_wrapper:  # isinstance() would ask objects that warn
            one.cache_clear()


@contextmanager
def without_processes() -> Iterator[list[str]]:
    """In this context a test that starts a process is skipped; gives a list that has an entry for each try."""
    tries: list[str] = []

    def refuse(*_: object, **__: object) -> Never:
        tries.append("started a process")
        pytest.skip("starts a process")

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((os, "fork"), (os, "posix_spawn"), (subprocess.Popen, "_execute_child")):
            patch.setattr(module, name, refuse)
        import _posixsubprocess

        patch.setattr(_posixsubprocess, "fork_exec", refuse)
        yield tries


class _Map:
    """A pytest plugin that measures each test and gives it a context of its own."""

    def __init__(self) -> None:
        self.measured = coverage.Coverage(
            data_file=None,
            source=None,
            include=[str(path_of(module)) for module in MODULES],
            config_file=False,
        )
        self.seconds: dict[str, float] = {}
        self._file = ""
        self._bad: set[str] = set()
        self._traces = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if file_of(item.nodeid) != self._file:
            self._file = file_of(item.nodeid)
            gc.unfreeze()
            forget_cached()
        if self._traces and sys.gettrace() is None:  # a test took it away, as debuggers do
            self.measured.stop()
            self.measured.start()
        self.measured.switch_context(item.nodeid)
        begun = time.process_time()
        with without_processes() as tries:
            result = yield
        if not tries and item.nodeid not in self._bad:
            self.seconds[item.nodeid] = round(time.process_time() - begun, 4)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._bad.add(report.nodeid)

    def pytest_collection_finish(self) -> None:
        self.measured.start()
        self._traces = sys.gettrace() is not None

    def pytest_sessionfinish(self) -> None:
        self.measured.stop()


def _run(files: Sequence[str]) -> tuple[Mapping[str, float], Lines]:
    """The processor time of each test, and by module and line the tests that ran it.

    Raises:
        SystemExit: the tests could not be collected, or were interrupted: a line that they run would seem untested.
    """
    plugin = _Map()
    os.chdir(ROOT)
    ended = pytest.main(["--durations=8", *arguments(files)], plugins=[plugin])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"which tests reach which line cannot be found out: pytest ended with {ended!r}")
    data: Any = plugin.measured.get_data()
    lines = {
        module: {
            str(line): frozenset(names)
            for line, names in data.contexts_by_lineno(str(path_of(module))).items()
        }
        for module in MODULES
    }
    return plugin.seconds, lines


def arguments(tests: Sequence[str]) -> list[str]:
    """Of pytest, in this process, for the fast ones of these tests."""
    # where pytest rewrites assertions, it also finds the modules of plugins, and ours are
    return [
        "-q",
        "-n",
        "0",
        "--assert=plain",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:unraisableexception",
        "-m",
        "not slow",
        *tests,
    ]


if __name__ == "__main__":
    known(Path(sys.argv[1]))
