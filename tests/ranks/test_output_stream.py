"""What ranks print is shown while they print it, in whole lines with their ranks, and no rank waits for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeconform.ranks import Crew, ForkServer, Pool
from pipeconform.ranks.output_stream import OutputStream, to_standard_error

GUARD = 30.0  # seconds no task comes near unless something hangs


class _Page:
    """Collects what is written."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.stream = OutputStream(self.parts.append)

    @property
    def lines(self) -> list[str]:
        return "".join(self.parts).splitlines()


@pytest.fixture
def page() -> _Page:
    return _Page()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "output-0"


@pytest.fixture
def pool(server: ForkServer, page: _Page) -> Iterator[Pool]:
    with Pool(Crew(server, size=2, stream=page.stream), idle_limit=0.5) as pool:
        yield pool


def test_a_line_is_shown_when_it_is_complete(page: _Page, file: Path) -> None:
    shown = []
    for text in (b"one\ntw", b"o\n", b"thr"):
        with file.open("ab") as end:
            end.write(text)
        page.stream.show(0, file)
        shown.append(page.lines)
    page.stream.end(0, file)

    assert shown == [["[rank0]: one"], ["[rank0]: one", "[rank0]: two"], ["[rank0]: one", "[rank0]: two"]]
    assert page.lines == ["[rank0]: one", "[rank0]: two", "[rank0]: thr"]


def test_of_a_progress_bar_the_last_state_is_shown(page: _Page, file: Path) -> None:
    file.write_bytes(b"10%\r20%\r\nend\r\n")
    page.stream.end(0, file)

    assert page.lines == ["[rank0]: 20%", "[rank0]: end"]


def test_a_line_without_end_does_not_fill_the_memory(page: _Page, file: Path) -> None:
    file.write_bytes(b"x" * (1 << 17))
    page.stream.show(0, file)

    assert page.lines == [f"[rank0]: {'x' * (1 << 17)}"]


def test_what_is_cut_off_before_it_was_read_is_counted(page: _Page, file: Path) -> None:
    file.write_bytes(b"a\nb")
    page.stream.show(0, file)
    with file.open("ab") as end:
        end.write(b"12345")
    page.stream.lost(0, file)
    file.write_bytes(b"c\n")
    page.stream.end(0, file)

    assert page.lines == ["[rank0]: a", "[rank0]: b", "[rank0]: (5 bytes are not shown)", "[rank0]: c"]


def test_a_file_that_its_task_emptied_or_deleted_is_read_on(page: _Page, file: Path) -> None:
    file.write_bytes(b"long\n")
    page.stream.show(0, file)
    file.write_bytes(b"new\n")
    page.stream.show(0, file)
    file.unlink()
    page.stream.end(0, file)

    assert page.lines == ["[rank0]: long", "[rank0]: new"]


def test_a_rank_that_prints_faster_than_it_is_read_comes_to_its_end(file: Path) -> None:
    shown: list[str] = []

    def printing_on(text: str) -> None:
        shown.append(text)
        with file.open("a") as end:
            end.write("later\n" * 3)

    file.write_text("before\n" * 2)
    OutputStream(printing_on).end(0, file)

    assert "".join(shown) == "[rank0]: before\n" * 2


def test_of_very_much_the_end_is_shown(page: _Page, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeconform.ranks.output_stream._MOST", 10)
    file.write_text("0123\n" * 5)
    page.stream.show(0, file)
    with file.open("a") as end:
        end.write("abcd\n" * 5)
    page.stream.end(0, file)

    assert page.lines[5:] == [
        "[rank0]: (15 bytes are not shown)",
        "[rank0]: abcd",
        "[rank0]: abcd",
    ]


def test_both_outputs_of_every_rank_are_shown_task_by_task(pool: Pool, page: _Page) -> None:
    for word in (b"first\nsecond\nlast", b"again\n"):
        pool.run("rank_tasks:speak", word, time_limit=GUARD)

    assert [line for line in page.lines if "rank1" in line] == [
        "[rank1]: first of 1",
        "[rank1]: second of 1",
        "[rank1]: last",
        "[rank1]: again of 1",
    ]
    assert sum("rank0" in line for line in page.lines) == 4


def test_a_line_is_shown_before_its_rank_has_answered(server: ForkServer) -> None:
    """The task ends only when somebody has read the line: the process that hangs is ended by the test."""
    seen = threading.Event()

    def write(text: str) -> None:
        if "waiting of 0" in text:
            seen.set()
            raise KeyboardInterrupt  # what a user does who has seen enough

    with (
        Pool(Crew(server, size=1, backend=None, stream=OutputStream(write)), idle_limit=GUARD) as pool,
        pytest.raises(KeyboardInterrupt),
    ):
        pool.run("rank_tasks:speak_and_hang", b"waiting", time_limit=GUARD)

    assert seen.is_set()


def test_what_a_hanging_rank_printed_is_shown_once(pool: Pool, page: _Page) -> None:
    vector = pool.run("rank_tasks:speak_and_hang", b"hanging", time_limit=GUARD)

    assert not vector.ok
    assert sorted(page.lines) == ["[rank0]: hanging of 0", "[rank1]: hanging of 1"]


def test_ranks_that_print_much_return_and_nothing_is_lost(pool: Pool, page: _Page) -> None:
    assert pool.run("rank_tasks:print_much", time_limit=GUARD).ok
    assert [sum(f"rank{rank}" in line for line in page.lines) for rank in (0, 1)] == [20 * 1024] * 2


def test_a_rank_that_prints_without_end_is_stopped_as_ever(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pool(Crew(server, size=1, backend=None, stream=OutputStream(len)), idle_limit=GUARD) as pool:
        verdict = pool.run("rank_tasks:print_forever", time_limit=1.0)[0]

    assert type(verdict).__name__ == "Stuck"


def test_a_closed_standard_error_ends_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "closed").open("w") as closed:
        pass
    monkeypatch.setattr("sys.stderr", closed)

    to_standard_error("nobody reads this\n")
