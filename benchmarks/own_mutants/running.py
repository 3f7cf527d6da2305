"""Running the tests that reach a mutant, in a process that is forked for it.

The parent has imported the product and collected the tests, and computes nothing. A child plants the mutant and runs
the tests that reach its line, cheapest file first, until one fails; if none does, the other tests of the same files.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType

import msgspec
import pytest

from benchmarks.own_mutants.drawing import ROOT, Mutant, source_of
from benchmarks.own_mutants.planting import Finder, living, plant
from benchmarks.own_mutants.reach import Reach, arguments, file_of, forget_cached, without_processes

__all__ = ["Answer", "Record", "in_child", "read", "run", "statement_at"]

_HALTS = 8.0
"""How many times as long as without a mutant tests may compute before they count as never ending."""
_START = 20.0
_PATIENCE = 10
"""The limit by the clock, in limits of processor time: other work may have the processors."""


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
    """How many were run."""
    left: int = 0
    """How many that reach it were not run, for lack of time."""
    seconds: float
    """Of processor time."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a child says."""

    by: str
    tests: int = 0
    left: int = 0


def read(path: Path) -> dict[str, Record]:
    """The records so far, by name."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = [msgspec.json.decode(line, type=Record) for line in lines]
    return {record.name: record for record in records}


def run(mutants: Iterable[Mutant], path: Path, *, reach: Reach, limit: float) -> None:
    """Try the mutants that `path` does not have yet; one line each, so that a stopped run can go on.

    No mutant's tests take more than `limit` seconds of processor time.
    """
    known = read(path)
    waiting = [mutant for mutant in mutants if mutant.name not in known]
    if not waiting:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    files = dict.fromkeys(file_of(test) for test in reach.seconds)
    pytest.main(arguments([*files]), plugins=[_Loop(waiting, path, reach=reach, limit=limit)])


class _Loop:
    """A pytest plugin that runs mutants in the place of tests."""

    def __init__(self, mutants: Sequence[Mutant], path: Path, *, reach: Reach, limit: float) -> None:
        self.mutants, self._path, self._reach, self._limit = mutants, path, reach, limit
        self._functions: dict[str, tuple[FunctionType, ...]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        gc.unfreeze()
        self._functions = dict(living())
        forget_cached()
        gc.freeze()
        terminal = session.config.get_terminal_writer()
        for mutant in self.mutants:
            record = self._tried(mutant, items)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")
            word = f"noticed by {record.by}" if record.noticed else "SURVIVES"
            terminal.line(
                f"{mutant.name} {record.operator} in {record.where}: {word}, "
                f"{record.tests} tests, {record.seconds:.1f} s"
            )
            terminal.flush()
        return True

    def _tried(self, mutant: Mutant, items: dict[str, pytest.Item]) -> Record:
        mutation = mutant.mutation
        first = [one for one in self._chosen(mutant) if one in items]
        tests = [*first, *(one for one in self._reach.beside(first) if one in items)]
        # one that cannot be planted asks all the tests of its module
        cost = sum(self._reach.seconds[one] for one in tests or self._reach.of_module(mutant.module))
        before = _children()
        answer = in_child(
            lambda: self._asked(mutant, [items[one] for one in tests]),
            limit=min(_START + _HALTS * cost, 2 * self._limit),
        )
        return Record(
            name=mutant.name,
            module=mutant.module,
            operator=mutation.operator,
            where=mutation.where,
            line=mutation.line,
            before=mutation.before,
            after=mutation.after,
            noticed=bool(answer.by),
            by=answer.by,
            tests=answer.tests,
            left=answer.left,
            seconds=round(_children() - before, 2),
        )

    def _chosen(self, mutant: Mutant) -> list[str]:
        """The tests that run the statement."""
        first, last = statement_at(source_of(mutant.module), mutant.mutation.line)
        return self._reach.tests(mutant.module, first, last)

    def _asked(self, mutant: Mutant, items: Sequence[pytest.Item]) -> Answer:
        """In the child: the tests in order, until one fails."""
        if plant(mutant, self._functions):
            return self._until_one_fails(items)
        files = dict.fromkeys(file_of(test) for test in self._reach.of_module(mutant.module))
        return _imported_anew(mutant, [*files], limit=self._limit) if files else Answer(by="")

    def _until_one_fails(self, items: Sequence[pytest.Item]) -> Answer:
        seen = _FirstFailure()
        begun = time.process_time()
        for number, item in enumerate(items):
            if number == 0:
                item.config.pluginmanager.register(seen)
            if time.process_time() - begun > self._limit:
                return Answer(by="", tests=number, left=len(items) - number)
            following = items[number + 1] if number + 1 < len(items) else None
            with without_processes():
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if seen.by:
                return Answer(by=seen.by, tests=number + 1)
        return Answer(by="", tests=len(items))


def statement_at(source: str, line: int) -> tuple[int, int]:
    """The first and last line of the innermost statement around a line; of one with a body, its head."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else (node.end_lineno or node.lineno)
            spans.append((node.lineno, last))
    return max((one for one in spans if one[1] >= line), default=(line, line))


class _FirstFailure:
    """A pytest plugin that remembers the first failure, and ends the session at a limit of processor time."""

    def __init__(self, *, limit: float = math.inf) -> None:
        self.by, self.tests, self.left = "", 0, 0
        self._until = time.process_time() + limit

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.process_time() > self._until and not item.session.shouldstop:
            item.session.shouldstop = "the limit"
            self.left = len(item.session.items) - self.tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests += report.when == "call"
        if report.failed and not self.by:
            self.by = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.by:
            self.by = f"{report.nodeid} (import)"


def _imported_anew(mutant: Mutant, files: Sequence[str], *, limit: float) -> Answer:
    """For what is computed when the module is imported: everything but torch is imported again."""
    for name in [one for one in sys.modules if one.partition(".")[0] in ("pipeconform", "tests")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder(mutant))
    seen = _FirstFailure(limit=limit)
    with without_processes():
        pytest.main(["-x", *arguments(files)], plugins=[seen])
    return Answer(by=seen.by, tests=seen.tests, left=seen.left)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_child(ask: Callable[[], Answer], *, limit: float) -> Answer:
    """What `ask` gives in a forked process that may compute for `limit` seconds."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _silence()
        try:
            answer = ask()
        except BaseException as error:
            answer = Answer(by=f"{type(error).__name__}: {error}"[:200])
        with os.fdopen(writing, "wb") as file:
            file.write(msgspec.json.encode(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        ready, _, _ = select.select([file], [], [], _PATIENCE * limit)
        text = file.read() if ready else b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not text:
        return Answer(by="the process died, or did not end")
    return msgspec.json.decode(text, type=Answer)


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
