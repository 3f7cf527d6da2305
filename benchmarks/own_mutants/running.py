"""Running the tests that reach a module against a mutant of it, in a process that is forked for it.

The parent has imported what every test needs and nothing of the product, so a mutant costs its own imports and its
tests. The child compiles the changed syntax tree in the place of the module; files stay as they are.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import msgspec

from benchmarks.mutants.operators import mutated
from benchmarks.own_mutants.drawing import ROOT, Mutant, place_of, reaching, source_of
from benchmarks.own_mutants.operators import of_the_product

__all__ = ["Record", "read", "run", "tried"]


_NEVER = "never imported"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a mutant."""

    name: str
    module: str
    operator: str
    where: str
    line: int
    before: str
    after: str
    noticed: bool
    by: str
    """The first test that failed, or what else happened; empty for a survivor."""
    tests: int
    seconds: float


def read(path: Path) -> dict[str, Record]:
    """The records so far, by name."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = [msgspec.json.decode(line, type=Record) for line in lines]
    return {record.name: record for record in records}


def run(mutants: Iterable[Mutant], path: Path, *, limit: float) -> None:
    """Try the mutants that `path` does not have yet; one line each, so that a stopped run can go on.

    Raises:
        RuntimeError: a test file fails without any mutant.
    """
    done = read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    passed: set[str] = set()
    _preload()
    for mutant in mutants:
        if mutant.name in done:
            continue
        for file in reaching(mutant.module):
            if file not in passed:
                _control(file, limit=limit)
                passed.add(file)
        record = tried(mutant, limit=limit)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
        word = f"noticed by {record.by}" if record.noticed else "SURVIVES"
        print(
            f"{mutant.name} {record.operator} in {record.where}: {word}, {record.seconds:.1f} s", flush=True
        )


def _control(file: str, *, limit: float) -> None:
    by, _ = _in_child(None, [file], limit=limit)
    if by:
        raise RuntimeError(f"{file} fails without a mutant: {by}; no mutant can be judged by it")


def tried(mutant: Mutant, *, limit: float) -> Record:
    """Run the tests that reach the mutant's module until one fails; more than `limit` seconds are noticed too."""
    begun = time.monotonic()
    by, tests = _in_child(mutant, reaching(mutant.module), limit=limit)
    mutation = mutant.mutation
    return Record(
        name=mutant.name,
        module=mutant.module,
        operator=mutation.operator,
        where=mutation.where,
        line=mutation.line,
        before=mutation.before,
        after=mutation.after,
        noticed=bool(by),
        by=by,
        tests=tests,
        seconds=round(time.monotonic() - begun, 3),
    )


def _preload() -> None:
    """What nearly every test imports; a fork has it already."""
    for name in ("torch", "numpy", "msgspec", "rich"):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def _in_child(mutant: Mutant | None, files: Sequence[str], *, limit: float) -> tuple[str, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        try:
            answer = _tested(mutant, files)
        except BaseException as error:
            answer = (f"{type(error).__name__}: {error}"[:200], 0)
        with os.fdopen(writing, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        ready, _, _ = select.select([file], [], [], limit)
        text = file.read() if ready else ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not ready:
        return "more time than it was given", 0
    if not text:
        return "the process died", 0
    by, tests = json.loads(text)
    if by == _NEVER:
        assert mutant is not None
        raise RuntimeError(f"the tests of {mutant.module} never import it; mend reach.toml")
    return str(by), int(tests)


class _FirstFailure:
    """A pytest plugin that remembers the first failure and counts tests."""

    def __init__(self) -> None:
        self.by, self.tests = "", 0

    def pytest_runtest_logreport(self, report: object) -> None:
        when, failed = getattr(report, "when", ""), getattr(report, "failed", False)
        self.tests += when == "call"
        if failed and not self.by:
            self.by = str(getattr(report, "nodeid", "?"))

    def pytest_collectreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.by:
            self.by = f"{getattr(report, 'nodeid', '?')} (import)"


def _tested(mutant: Mutant | None, files: Sequence[str]) -> tuple[str, int]:
    """In the child: the tests in order, until one fails."""
    for name in [one for one in sys.modules if one.partition(".")[0] in ("pipeconform", "tests")]:
        del sys.modules[name]
    finder = _Finder(mutant)
    sys.meta_path.insert(0, finder)
    os.chdir(ROOT)
    seen = _FirstFailure()
    import pytest

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _silence()
        code = pytest.main(_arguments(files), plugins=[seen])
    if mutant is not None and not finder.found:
        return _NEVER, seen.tests
    return seen.by or ("" if code == 0 else f"pytest ended with {int(code)}"), seen.tests


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _arguments(files: Sequence[str]) -> list[str]:
    # where pytest rewrites assertions, it also finds the modules of plugins, and ours are
    return ["-x", "-q", "-n", "0", "--assert=plain", "-p", "no:cacheprovider", "-m", "not slow", *files]


class _Finder(MetaPathFinder):
    """Finds the mutant in the place of its module."""

    def __init__(self, mutant: Mutant | None) -> None:
        self._mutant = mutant
        self.found = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._mutant is None or fullname != self._mutant.module:
            return None
        self.found = True
        file = str(place_of(fullname).with_suffix(".py"))
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Loader(fullname, file, self._mutant)
        )


class _Loader(SourceFileLoader):
    """Compiles the changed syntax tree."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        tree = mutated(source_of(self._mutant.module), self._mutant.mutation.identity, by=of_the_product)
        code: CodeType = compile(tree, self.path, "exec")
        return code
