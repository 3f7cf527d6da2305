"""The debugger of one rank, on a terminal whose other end the test has."""

from __future__ import annotations

import os
import pty
import select
import sys
import termios

import pytest

from pipeconform.ranks import debugger
from pipeconform.ranks.debugger import VARIABLE, Request

GUARD = 30.0  # seconds


class Terminal:
    """A terminal, and the person before it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.name = os.ttyname(self.slave)
        attributes = termios.tcgetattr(self.slave)
        attributes[3] &= ~termios.ECHO  # the kernel may put what was typed anywhere in what is shown
        termios.tcsetattr(self.slave, termios.TCSANOW, attributes)

    def type(self, *commands: str) -> None:
        os.write(self.master, "".join(f"{one}\n" for one in commands).encode())

    def shown(self, *expected: str) -> str:
        """What appears, at least until all of `expected` has: the kernel hands it over when it finds the time."""
        text = ""
        while select.select([self.master], [], [], 0.2 if all(one in text for one in expected) else GUARD)[0]:
            text += os.read(self.master, 1 << 16).decode()
        return text


@pytest.fixture
def terminal():
    made = Terminal()
    yield made
    os.close(made.master)
    os.close(made.slave)


@pytest.fixture
def closed(tmp_path):
    return tmp_path / "it:is:closed"


@pytest.fixture
def installed(monkeypatch, terminal, tmp_path, closed):
    """Installs the debugger in rank 1, as a rank would; this process is `rank`."""
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    monkeypatch.setattr(debugger, "_HERE", [])
    monkeypatch.setenv(VARIABLE, str(Request(rank=1, terminal=terminal.name, closed=str(closed))))

    def install(rank: int) -> None:
        debugger.install(rank, folder=str(tmp_path))

    yield install
    for one in debugger._HERE:
        if one._debugger is not None:  # it keeps its terminal open as long as its process lives
            one._debugger.stdin.close()
            one._debugger.stdout.close()


def stopping(value):
    breakpoint()
    return value + 1


def raised():
    try:
        raise ValueError("bad")
    except ValueError as error:
        return error


def test_a_request_is_read_as_it_was_written():
    request = Request(rank=3, terminal="/dev/pts/7", closed="/tmp/a:b/closed")

    assert Request.of(str(request)) == request
    assert Request.of("") is None
    assert Request.of(None) is None


def test_without_a_request_nothing_is_installed(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    before = sys.breakpointhook
    debugger.install(0, folder=str(tmp_path))

    assert sys.breakpointhook is before
    debugger.post_mortem(raised())


def test_in_another_rank_breakpoints_are_passed_by(installed, terminal):
    installed(0)

    assert stopping(1) == 2
    debugger.post_mortem(raised())
    assert terminal.shown() == ""


def test_a_breakpoint_stops_in_its_own_frame_and_the_program_goes_on(installed, terminal, closed, tmp_path):
    installed(1)
    terminal.type("p value * 21", "value = 40", "c")

    assert stopping(2) == 41
    expected = ("rank 1 is at a breakpoint()", "(Pdb, rank 1) 42\r\n")
    shown = terminal.shown(*expected)
    assert all(one in shown for one in expected)
    assert not closed.exists()
    assert not debugger.is_open(tmp_path)


def test_the_pool_sees_that_the_debugger_is_open(installed, terminal, tmp_path):
    installed(1)
    terminal.type(f"p __import__('os').listdir({str(tmp_path)!r})", "c")
    stopping(1)

    assert "['debugger-open']" in terminal.shown("['debugger-open']")


@pytest.mark.parametrize("command", ["q", "quit", "exit"])
def test_quitting_closes_it_for_good(installed, terminal, closed, command):
    installed(1)
    terminal.type(command)

    assert stopping(1) == 2
    assert closed.exists()
    terminal.shown("rank 1 is at a breakpoint()")
    assert stopping(2) == 3
    debugger.post_mortem(raised())
    assert terminal.shown() == ""


def test_an_exception_opens_it_where_it_was_raised_and_only_once(installed, terminal):
    installed(1)
    error = raised()
    terminal.type("p 6 * 7", "l", "c")
    debugger.post_mortem(error)
    expected = ("rank 1 raised ValueError: bad", "42", 'raise ValueError("bad")')
    shown = terminal.shown(*expected)

    assert all(one in shown for one in expected)
    debugger.post_mortem(error)
    assert terminal.shown() == ""
