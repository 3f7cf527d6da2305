"""The picture has a cell for every computation, in its place, and every rank's idle time and memory."""

from xml.etree import ElementTree as ET

import pytest

from pipeconform.schedule import generate, lower, simulate, svg
from pipeconform.schedule.svg import COLOURS, draw_svg

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
