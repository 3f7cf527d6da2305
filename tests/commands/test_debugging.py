"""``replay --pdb``: a debugger in one rank on a real terminal, for which the other ranks wait."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World, encode_case
from tests import tenths

ENGINE = Path(__file__).with_name("stopping_engine.py")
PROMPT = "(Pdb, rank 1) "
CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=2, num_microbatches=2),),
)
GUARD = 120.0  # seconds no answer comes near unless something hangs
PATIENCE = 4.0  # seconds; ranks that wait this long are stuck, where no debugger is open
MARK = "PIPECONFORM_TEST_OF_PDB"


class _Terminal:
    """A replay on a terminal of its own, and the person before it."""

    def __init__(self, name: str, folder: Path) -> None:
        Path(folder, "case.json").write_bytes(encode_case(CASE))
        self.mark = f"{MARK}={folder}"
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pipeconform", "replay", "case.json", "--impl", f"{ENGINE}:{name}"),
                *("--requirement", "FWD-1", "--pdb", "1"),
            ],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, MARK: str(folder)},
            start_new_session=True,
        )
        os.close(slave)

    def until(self, end: str | None) -> str:
        """What appears up to `end`; all of it, without one."""
        text, deadline = "", time.monotonic() + GUARD
        while time.monotonic() < deadline and (end is None or end not in text):
            if not select.select([self._master], [], [], 1.0)[0]:
                continue
            try:
                text += os.read(self._master, 1 << 16).decode(errors="replace")
            except OSError:  # the other end is closed
                break
        assert end is None or end in text, text
        return text.replace("\r\n", "\n")

    def type(self, command: str) -> None:
        os.write(self._master, f"{command}\n".encode())

    def answer(self, command: str) -> str:
        """What a command of the debugger prints."""
        self.type(command)
        return self.until(PROMPT).removeprefix(f"{command}\n").removesuffix(PROMPT).strip()

    def survivors(self) -> list[int]:
        """The processes of the replay that are alive."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # it is gone, or somebody else's
                continue
        return found

    def close(self) -> None:
        os.close(self._master)
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(GUARD)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[object]:
    opened: list[_Terminal] = []

    def run(name: str) -> _Terminal:
        opened.append(_Terminal(name, tmp_path))
        return opened[-1]

    yield run
    for one in opened:
        one.close()


@tenths.long
def test_a_breakpoint_stops_one_rank_and_the_others_wait_for_its_user(terminal) -> None:
    one = terminal("Stops")

    assert "rank 1 is at a breakpoint()" in one.until(PROMPT)
    time.sleep(PATIENCE)
    assert one.answer("p due, self.position") == "(2, 1)"
    assert "due += 1" in one.answer("n") or "return super().run(mode, batch)" in one.answer("n")
    one.type("c")
    said = one.until(None)
    assert "FIXED: FWD-1 met" in said
    assert one.process.wait(GUARD) == 0
    assert one.survivors() == []


@tenths.long
def test_where_a_rank_raises_its_variables_can_be_seen(terminal) -> None:
    one = terminal("Raises")

    assert "rank 1 raised ValueError: not 42" in one.until(PROMPT)
    time.sleep(PATIENCE)
    assert one.answer("p due") == "42"
    assert "Raising" in one.answer("p type(self).__name__")
    one.type("q")
    said = one.until(None)
    assert "it raised ValueError: not 42" in said
    assert one.process.wait(GUARD) != 0
    assert one.survivors() == []


@tenths.long
def test_a_debugger_that_was_closed_stays_closed(terminal) -> None:
    one = terminal("Stops")
    one.until(PROMPT)
    one.type("q")

    said = one.until(None)
    assert "FIXED: FWD-1 met" in said
    assert PROMPT not in said
    assert one.process.wait(GUARD) == 0


@pytest.mark.parametrize(("rank", "reason"), [("2", "the case has ranks 0 to 1"), ("-1", "not in the range")])
def test_a_rank_that_the_case_has_not_is_refused(typed, monkeypatch, rank, reason) -> None:
    Path("case.json").write_bytes(encode_case(CASE))
    master, slave = pty.openpty()
    with open(slave) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        code, _, err = typed("replay", "case.json", "--impl", f"{ENGINE}:Stops", "--pdb", rank)
    os.close(master)

    assert code == 2
    assert reason in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--pdb needs a terminal"),
        (("--script", "shown.py"), "there is nothing to debug with --pdb"),
        (("--attach", "localhost:0"), "with --attach ranks run on other hosts"),
    ],
)
def test_where_no_debugger_can_open_it_is_refused(typed, monkeypatch, arguments, reason) -> None:
    Path("case.json").write_bytes(encode_case(CASE))
    monkeypatch.setenv("PIPECONFORM_TOKEN", "x" * 32)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        code, _, err = typed("replay", "case.json", "--impl", f"{ENGINE}:Stops", "--pdb", "1", *arguments)

    assert code == 2
    assert reason in err
