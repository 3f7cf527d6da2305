"""Pictures show every computation, its time, and idle ranks."""

import pytest

from pipeconform.errors import UsageError
from pipeconform.schedule import drawing, generate, simulate
from pipeconform.schedule.drawing import draw_text


def test_text_drawing():
    simulation = simulate(generate("one_f_one_b", num_ranks=2, num_microbatches=2))

    assert draw_text(simulation) == (
        "rank 0 0F0|0F1|········0B0----|····0B1----|\n"
        "rank 1 ····1F0|1B0----|1F1|1B1----|········\n"
        "held 0 ▄▄▄▄████████████████████▄▄▄▄▄▄▄▄▄▄▄▄\n"
        "held 1     ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄\n"
        "makespan 9, busy 66.7%, longest idle time 3 (between a rank's own first and last action 3), most held 2\n"
    )


def test_pairs_are_drawn_as_one():
    simulation = simulate(generate("dualpipe_v", num_ranks=1, stages_per_rank=2, num_microbatches=3))

    assert "1F1==&0B0==|" in draw_text(simulation)


def test_lines_are_cut_to_the_width():
    simulation = simulate(generate("gpipe", num_ranks=3, num_microbatches=40))

    lines = draw_text(simulation, width=60).splitlines()

    assert {60} == {len(line) for line in lines[:3]}


def test_colours_are_reset_at_the_end_of_every_line():
    coloured = draw_text(simulate(generate("gpipe", num_ranks=2, num_microbatches=1)), colour=True)

    assert "\x1b[0;30;44m0F0|" in coloured
    assert all(line.endswith("\x1b[0m") for line in coloured.splitlines()[:2])


@pytest.mark.parametrize(
    ("mark", "rank", "expected"),
    [
        ((0, 1), 0, "           ^^^"),
        ((1, 3), 1, "                           ^^^"),
        ((0, 4), 0, " " * 43 + "^"),
    ],
)
def test_a_computation_or_the_place_behind_the_last_one_is_pointed_at(mark, rank, expected):
    drawn = list(drawing.cells(simulate(generate("one_f_one_b", num_ranks=2, num_microbatches=2))))

    lines = drawing.draw_lines(drawn, num_ranks=2, mark=mark)

    assert lines[rank].startswith(f"rank {rank} ")
    assert lines[rank + 1] == expected
    assert len(lines) == 3


def test_lines_are_cut_so_that_what_is_pointed_at_is_seen():
    drawn = list(drawing.cells(simulate(generate("gpipe", num_ranks=2, num_microbatches=20))))

    above, below, _ = drawing.draw_lines(drawn, num_ranks=2, width=50, mark=(0, 30))

    assert above[below.index("^") : below.index("^") + 4] == "0B10"
    assert len(above) == 50


def test_too_large_pictures_are_refused(monkeypatch):
    monkeypatch.setattr(drawing, "MAX_CELLS", 5)

    with pytest.raises(UsageError, match="6 computations do not fit"):
        draw_text(simulate(generate("gpipe", num_ranks=1, num_microbatches=3)))
