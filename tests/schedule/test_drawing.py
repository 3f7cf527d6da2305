"""Pictures show every computation, its time, and idle ranks."""

import pytest

from pipeconform.errors import UsageError
from pipeconform.schedule import Costs, drawing, generate, simulate
from pipeconform.schedule.drawing import draw_text
from tests.schedule.in_words import table as _table


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


def _lines(table, costs=None, **options):
    return draw_text(simulate(table, costs=costs or Costs()), **options).splitlines()


def test_as_many_cells_as_fit_are_drawn(monkeypatch):
    monkeypatch.setattr(drawing, "MAX_CELLS", 6)

    assert len(_lines(generate("gpipe", num_ranks=1, num_microbatches=3))) == 3


def test_a_computation_without_time_takes_no_room():
    free, _, told = _lines(_table("0F0 0B0", placement=(0,)), Costs(forward=0.0))

    assert free == "rank 0 0B0|"
    assert told.startswith("makespan 2, ")


def test_a_label_that_just_fits_is_whole():
    """A pair takes 1.5 time units, of 4 columns each: half of it has 3, as many as its label."""
    line, *_ = _lines(_table("0F0 (0F1;0B0)OVERLAP_F_B 0B1", placement=(0,), m=2), Costs(pair_factor=0.5))

    assert line == "rank 0 0F0|0F10B00B1----|"


def test_labels_are_cut_to_short_cells():
    line, *_ = _lines(_table("0F0 (0F1;0B0)OVERLAP_F_B 0B1", placement=(0,), m=2), Costs(pair_factor=1 / 3))

    assert line == "rank 0 0F0|0F0B0B1----|"


def test_heights_are_relative_to_the_most_that_any_rank_holds():
    """Of four, the last rank of 1F1B holds one, and nothing is drawn where nothing is held."""
    _, _, _, _, *held, _ = _lines(generate("one_f_one_b", num_ranks=4, num_microbatches=4))

    assert [max(line.partition(" ")[2].split(" ", 1)[1]) for line in held] == ["█", "▆", "▄", "▂"]
    assert held[3].startswith("held 3             ▂")


def test_weight_gradients_are_held_until_they_are_computed():
    _, held, _ = _lines(_table("0F0 0I0 0F1 0I1 0W0 0W1", placement=(0,), m=2))

    assert held == "held 0 ▄▄▄▄▄▄▄▄████████████▄▄▄▄"


def test_ranks_are_written_below_each_other_however_many_there_are():
    lines = _lines(generate("forward_only", num_ranks=11, num_microbatches=1))

    assert lines[0].startswith("rank 0  0F0-|")
    assert lines[10] == "rank 10 " + "·" * 50 + "10F0|"
    assert lines[11].startswith("held 0  █")


def test_all_lines_but_the_sums_are_cut_to_the_width():
    *lines, told = _lines(generate("gpipe", num_ranks=2, num_microbatches=9), width=20)

    assert {len(line) for line in lines} == {20}
    assert len(told) > 20


@pytest.mark.parametrize("width", [1, 7, 8])
def test_one_column_at_least_is_drawn(width):
    lines = drawing.draw_lines(
        list(drawing.cells(simulate(_table("0F0", placement=(0,))))), num_ranks=1, width=width
    )

    assert lines == ["rank 0 0"]


def test_every_kind_has_its_colour_and_idle_time_has_none():
    coloured, *_ = _lines(_table("0F0 0I0 0W0", "1F0 1B0"), colour=True)
    cells = {"0F0|": "44", "0I0|": "43", "0W0|": "45"}

    reset = "\x1b[0m"
    painted = [f"\x1b[0;30;{code}m{text}" for text, code in cells.items()]
    assert coloured == f"rank 0 {painted[0]}{reset}{'·' * 12}{painted[1]}{painted[2]}{reset}"
    plain = _lines(_table("0F0 0I0 0W0", "1F0 1B0"))[0]
    assert plain == "rank 0 0F0|············0I0|0W0|"


def test_a_rank_that_computes_nothing_is_pointed_at_where_it_begins():
    drawn = list(drawing.cells(simulate(_table("0F0", "", placement=(0,)))))

    assert drawing.draw_lines(drawn, num_ranks=2, mark=(1, 0)) == ["rank 0 0F0|", "rank 1 ····", "       ^"]


def test_a_table_without_computations_can_be_drawn():
    assert _lines(_table("", "")) == [
        "rank 0 ",
        "rank 1 ",
        "held 0",
        "held 1",
        "makespan 0, busy 100.0%, longest idle time 0 (between a rank's own first and last action 0), most held 0",
    ]
