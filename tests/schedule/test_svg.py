"""The picture has a cell for every computation, in its place, and every rank's idle time and memory."""

from xml.etree import ElementTree as ET

import pytest

from pipeconform.schedule import Costs, generate, lower, simulate, svg
from pipeconform.schedule.svg import COLOURS, draw_svg
from tests.schedule.in_words import table as _table

SVG = "{http://www.w3.org/2000/svg}"


def _texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def _boxes(root):
    """The cells by label."""
    boxes = [box for box in root.iter(f"{SVG}rect") if len(box)]
    return {box.find(f"{SVG}title").text.partition(":")[0]: box for box in boxes}


@pytest.mark.parametrize("name", ["zb_v", "dualpipe_v", "chimera", "hanayo"])
def test_there_is_a_titled_cell_for_every_computation(name):
    table = lower(generate(name, num_ranks=2, stages_per_rank=2, num_microbatches=4))

    root = ET.fromstring(draw_svg(simulate(table), title="a < b & c"))

    titles = sorted(element.text.split(":")[0] for element in root.iter(f"{SVG}title"))
    assert titles == sorted(str(leaf) for a in table for x in a for leaf in x.leaves if leaf.kind <= 3)
    assert "a < b & c" in _texts(root)
    assert len(list(root.iter(f"{SVG}polygon"))) == table.num_ranks


def test_cells_lie_where_and_as_long_as_they_run():
    simulation = simulate(generate("gpipe", num_ranks=1, num_microbatches=1))

    boxes = _boxes(ET.fromstring(draw_svg(simulation, width=500)))

    forward, backward = boxes["0F0"], boxes["0B0"]
    assert forward.find(f"{SVG}title").text == "0F0: 0 to 1"
    assert float(backward.get("x")) - float(forward.get("x")) == pytest.approx(100, abs=0.1)
    assert float(backward.get("width")) == pytest.approx(200, abs=1)
    assert (forward.get("fill"), backward.get("fill")) == ("#3b76c4", "#2f9467")


def test_the_four_kinds_have_four_colours_and_later_stages_are_paler():
    root = ET.fromstring(
        draw_svg(simulate(generate("zb_v", num_ranks=1, stages_per_rank=2, num_microbatches=2)))
    )

    fills = {label: box.get("fill") for label, box in _boxes(root).items()}

    assert len(set(COLOURS.values())) == 4
    assert len({fills[label] for label in ("0F0", "0I0", "0W0", "1F0", "1I0", "1W0")}) == 6


def test_a_picture_is_as_wide_as_its_labels_need():
    simulation = simulate(generate("gpipe", num_ranks=1, num_microbatches=101))

    root = ET.fromstring(draw_svg(simulation))

    assert {"0F0", "0F100", "0B100"} <= set(_texts(root))
    assert int(root.get("width")) > svg.MIN_WIDTH


def test_narrow_cells_carry_the_microbatch_only_and_narrower_ones_nothing():
    simulation = simulate(generate("gpipe", num_ranks=1, num_microbatches=9))

    told = {
        width: set(_texts(ET.fromstring(draw_svg(simulation, width=width)))) & {"0F7", "7", "0B7"}
        for width in (900, 520, 420, 300)
    }

    assert told == {900: {"0F7", "0B7"}, 520: {"7", "0B7"}, 420: {"7"}, 300: set()}


def test_the_width_asked_for_is_kept_and_nobody_gets_more_than_the_most(monkeypatch):
    simulation = simulate(generate("gpipe", num_ranks=1, num_microbatches=100))
    monkeypatch.setattr(svg, "MAX_WIDTH", 1_500)

    wide, asked = (ET.fromstring(draw_svg(simulation, width=width)) for width in (None, 700))

    assert [int(wide.get("width")), int(asked.get("width"))] == [1_500, 700]
    assert len(_boxes(asked)) == 200


def test_every_ranks_idle_time_and_peak_is_written_beside_it():
    root = ET.fromstring(draw_svg(simulate(generate("zb_h1", num_ranks=2, num_microbatches=4))))

    idle = [text for text in _texts(root) if text and text.endswith("%)")]
    assert idle == ["1  (7.7%)", "1  (7.7%)"]
    assert "2  (2 to I)" in _texts(root)


def test_the_curve_is_as_high_as_what_a_rank_holds():
    """1F1B on two ranks: the first holds 2 at most, the second 1, half as high."""
    root = ET.fromstring(draw_svg(simulate(generate("one_f_one_b", num_ranks=2, num_microbatches=4))))

    curves = [
        [float(corner.split(",")[1]) for corner in polygon.get("points").split()]
        for polygon in root.iter(f"{SVG}polygon")
    ]

    heights = [max(curve) - min(curve) for curve in curves]
    assert heights == pytest.approx([34, 17])


@pytest.mark.parametrize(("width", "step"), [(600, 10), (1100, 5), (2400, 2), (9000, 0.5)])
def test_the_time_axis_counts_in_ones_twos_and_fives(width, step):
    simulation = simulate(generate("gpipe", num_ranks=2, num_microbatches=20))

    times = _texts(ET.fromstring(draw_svg(simulation, width=width)))

    assert times[times.index("0") :][:3] == [f"{k * step:g}" for k in range(3)]


def test_a_line_goes_up_and_down_the_picture_at_every_time_that_is_written():
    """GPipe on one rank lasts 6 units of 50 pixels each; 84 are for the rank's name."""
    root = _drawn(generate("gpipe", num_ranks=1, num_microbatches=2), width=84 + 300 + 116)
    _, *lines = (one.get("d") for one in root.iter(f"{SVG}path") if "V" in one.get("d"))  # the hatch first
    times = [text for text in root.iter(f"{SVG}text") if text.text in ("0", "2", "4", "6")][:4]

    assert [float(line[1:].partition(" ")[0]) for line in lines] == [84, 184, 284, 384]
    assert [float(time.get("x")) for time in times] == [84, 184, 284, 384]


def _drawn(table, *, width=None, costs=None, title="a title"):
    return ET.fromstring(draw_svg(simulate(table, costs=costs or Costs()), width=width, title=title))


def _hatched(root):
    """Places and sizes of what is drawn as idle time, the legend first."""
    boxes = [box for box in root.iter(f"{SVG}rect") if box.get("fill") == "url(#idle)"]
    return [tuple(float(box.get(name)) for name in ("x", "y", "width", "height")) for box in boxes]


def test_everything_that_is_written_in_a_picture():
    """Each of two ranks computes for 6 of 7 time units; the second puts its weight gradients off."""
    root = _drawn(generate("zb_h1", num_ranks=2, num_microbatches=2), width=800)

    assert [text for text in _texts(root) if text and text[1:2] not in tuple("FIW")] == [
        "a title",
        "2 ranks, 2 stages, 2 microbatches; makespan 7, busy 85.7%",
        "F forward",
        "I input gradient",
        "W weight gradient",
        "idle",
        *map(str, range(8)),
        "time",
        "idle",
        "rank 0",
        "1  (14.3%)",
        "rank 1",
        "1  (14.3%)",
        "Activations held",
        "(stage, microbatch) pairs, from the start of a forward to its W (filled) and to its I (line)",
        "peak",
        "rank 0",
        "2  (2 to I)",
        "rank 1",
        "2  (1 to I)",
    ]


def test_the_legend_has_the_kinds_of_the_table_only_each_with_its_colour():
    def legend(table):
        root = _drawn(table)
        boxes = [box for box in root.iter(f"{SVG}rect") if not len(box) and box.get("height") == "13"]
        return [box.get("fill") for box in boxes], {"F forward", "B backward", "W weight gradient"} & {
            *_texts(root)
        }

    forward, backward, _, weight = COLOURS.values()

    assert legend(_table("0F0", placement=(0,))) == ([forward, "url(#idle)"], {"F forward"})
    assert legend(_table("0F0 0B0", placement=(0,))) == (
        [forward, backward, "url(#idle)"],
        {"F forward", "B backward"},
    )
    assert legend(_table("0W0", placement=(0,))) == ([weight, "url(#idle)"], {"W weight gradient"})


@pytest.mark.parametrize(
    ("name", "v", "told"),
    [
        ("gpipe", 1, "1 rank, 1 stage, 1 microbatch; makespan 3, busy 100.0%"),
        ("looped_bfs", 2, "1 rank, 2 stages, 1 microbatch; makespan 6, busy 100.0%"),
    ],
)
def test_one_of_a_kind_is_no_plural(name, v, told):
    assert told in _texts(_drawn(generate(name, num_ranks=1, stages_per_rank=v, num_microbatches=1)))


def test_the_microbatches_of_both_directions_are_counted():
    texts = _texts(_drawn(generate("chimera", num_ranks=2, stages_per_rank=2, num_microbatches=4)))

    assert "2 ranks, 4 stages, 4 microbatches" in texts[1]


@pytest.mark.parametrize(("name", "v", "pale"), [("gpipe", 1, False), ("looped_bfs", 2, True)])
def test_paler_stages_are_explained_where_there_are_any(name, v, pale):
    texts = _texts(_drawn(generate(name, num_ranks=2, stages_per_rank=v, num_microbatches=2)))

    assert ("paler: later stages" in texts) is pale


def test_words_are_white_on_a_first_stage_and_dark_on_paler_ones():
    root = _drawn(generate("looped_bfs", num_ranks=1, stages_per_rank=3, num_microbatches=1))
    inks = {text.text: text.get("fill") for text in root.iter(f"{SVG}text")}

    assert inks["0F0"] == "#ffffff"
    assert inks["1F0"] == inks["2F0"] != "#ffffff"


def test_the_halves_of_an_overlapped_pair_lie_above_each_other():
    boxes = _boxes(_drawn(_table("0F0 (0F1;0B0)OVERLAP_F_B 0B1", placement=(0,), m=2)))
    places = {
        label: tuple(float(box.get(name)) for name in ("x", "y", "width", "height"))
        for label, box in boxes.items()
    }
    forward, backward, alone = (places[label] for label in ("0F1", "0B0", "0F0"))

    assert (forward[0], forward[2]) == (backward[0], backward[2])
    assert (forward[1], backward[1]) == (alone[1], alone[1] + alone[3] / 2)
    assert forward[3] == backward[3] == (alone[3] - 1) / 2


def test_every_lane_is_hatched_as_long_as_the_step_and_the_lanes_do_not_touch():
    """84 pixels are for the ranks' names, 116 for what is told beside them."""
    _, first, second = _hatched(_drawn(generate("gpipe", num_ranks=2, num_microbatches=2), width=700))

    assert first[::2] == second[::2] == (84, 500)
    assert first[1] + first[3] < second[1]


def test_computations_without_time_do_not_widen_the_picture():
    free = _drawn(generate("gpipe", num_ranks=1, num_microbatches=4), costs=Costs(forward=0.0))

    assert int(free.get("width")) == svg.MIN_WIDTH
    assert len(_boxes(free)) == 8


def test_a_picture_of_nothing_can_be_drawn():
    root = _drawn(_table("", ""))

    assert "2 ranks, 2 stages, 1 microbatch; makespan 0, busy 100.0%" in _texts(root)
    assert [text for text in _texts(root) if text.endswith("%)")] == ["0  (0.0%)"] * 2
    assert len(_hatched(root)) == 3


def _corners(root, shape):
    """The corners of every curve, in units of time and height above the curve's lower edge."""
    found = [
        [tuple(map(float, corner.split(","))) for corner in one.get("points").split()]
        for one in root.iter(f"{SVG}{shape}")
    ]
    return [
        [(round((x - 84) / 50, 2), round((curve[0][1] - y) / 34, 2)) for x, y in curve] for curve in found
    ]


def test_a_curve_rises_where_a_forward_starts_and_falls_where_a_backward_ends():
    """GPipe on one rank: F from 0 to 1 and 1 to 2, B until 4 and 6; 50 pixels are one time unit."""
    root = _drawn(generate("gpipe", num_ranks=1, num_microbatches=2), width=84 + 300 + 116)
    (curve,) = _corners(root, "polygon")

    assert list(dict.fromkeys(curve)) == [
        (0, 0),
        (0, 0.5),
        (1, 0.5),
        (1, 1),
        (4, 1),
        (4, 0.5),
        (6, 0.5),
        (6, 0),
    ]
    assert list(root.iter(f"{SVG}polyline")) == []


def test_what_is_freed_and_taken_at_once_changes_nothing():
    """Microbatch by microbatch, F, I and W: the filled curve is flat, and the line falls at the end of each I."""
    root = _drawn(_table("0F0 0I0 0W0 0F1 0I1 0W1", placement=(0,), m=2), width=84 + 300 + 116)
    polygons, lines = root.iter(f"{SVG}polygon"), root.iter(f"{SVG}polyline")
    heights = [
        [float(corner.split(",")[1]) for corner in one.get("points").split()] for one in (*polygons, *lines)
    ]
    times = [
        float(corner.split(",")[0]) - 84 for corner in next(root.iter(f"{SVG}polyline")).get("points").split()
    ]

    bottom = max(heights[0])
    assert [bottom - height for height in heights[0]] == [0, 34, 34, 34, 34, 0, 0, 0]
    assert [(time / 50, bottom - height) for time, height in zip(times, heights[1], strict=True)] == [
        (0, 34),
        (2, 34),
        (2, 0),
        (3, 0),
        (3, 34),
        (5, 34),
        (5, 0),
        (6, 0),
    ]
