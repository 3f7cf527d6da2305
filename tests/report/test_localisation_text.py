"""Where an error begins and how it spreads, as a reader sees it."""

import textwrap

import msgspec

from pipeconform.observe.localisation import Deviation, Lane, Localisation
from pipeconform.report.localisation_text import localisation_lines


def _lane(direction, stage, marks, side=""):
    return Lane(direction=direction, stage=stage, marks=marks, side=side)


FOUND = Localisation(
    first=Deviation(
        direction="output gradient",
        step=0,
        stage=1,
        microbatch=2,
        rank=1,
        tensor="gradient of output 0",
        text="value differs at [0]\n  expected  1.0\n  actual    0.5",
        likeness="it is 0.5 times the reference's",
    ),
    lanes=(
        _lane("forward value", 0, "===", "input"),
        _lane("forward value", 0, "===", "output"),
        _lane("forward value", 1, "===", "input"),
        _lane("forward value", 1, "===", "output"),
        _lane("forward value", 2, "==.", "input"),
        _lane("forward value", 2, "===", "output"),
        _lane("forward value", 2, "===", "result"),
        _lane("loss", 2, "==="),
        _lane("output gradient", 2, "==="),
        _lane("input gradient", 2, "==="),
        _lane("output gradient", 1, "==x"),
        _lane("input gradient", 1, "==x"),
        _lane("output gradient", 0, "==x"),
        _lane("weight gradient", 2, "="),
        _lane("weight gradient", 1, "x"),
        _lane("weight gradient", 0, "x"),
    ),
    compared=41,
    wrong=5,
)


UNLIKE = msgspec.structs.replace(FOUND.first, likeness="")


def test_the_first_wrong_tensor_and_what_it_spreads_to():
    assert "\n".join(localisation_lines(FOUND)) == (
        """\
first wrong of 41 compared tensors: output gradient of stage 1, microbatch 2, in step 0 on rank 1
  gradient of output 0: it is 0.5 times the reference's
  value differs at [0]
    expected  1.0
    actual    0.5
how the error spreads in step 0, per microbatch (= right, x wrong, . not seen):
  forward     stages 0 to 1: all right
              stage 2: in ==.  out ===  returned ===
  loss        stage 2: ===
  backward    stage 2: out ===  in ===
              stage 1: out ==x  in ==x
              stage 0: out ==x
  weights     stage 2: =
              stage 1: x
              stage 0: x"""
    )


def test_what_the_message_says_is_not_repeated():
    said = "gradient of output 0 is not the reference's\n" + FOUND.first.text
    lines = localisation_lines(FOUND, said=said)
    without = localisation_lines(msgspec.structs.replace(FOUND, first=UNLIKE), said=said)

    assert lines[1] == "  gradient of output 0: it is 0.5 times the reference's"
    assert lines[2].startswith("how the error spreads")
    assert without[1].startswith("how the error spreads")
    assert localisation_lines(FOUND, said=textwrap.indent(said, "  ")) == lines
    assert localisation_lines(FOUND, said="something else") == localisation_lines(FOUND)


def test_a_missing_bound_is_said():
    (line, *_) = localisation_lines(msgspec.structs.replace(FOUND, bounded=False))

    assert line.endswith("no error bound could be computed, so only what is far off counts")


def test_nothing_is_said_where_nothing_is_wrong():
    assert localisation_lines(Localisation(first=None, compared=1, wrong=0)) == []


def test_nothing_is_said_where_nobody_looked():
    assert localisation_lines(None) == []
