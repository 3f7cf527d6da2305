"""The picture of a case shows its stages, ranks and what is special about them."""

import pytest

from pipeconform.adapter import Placement, placement_of
from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Kwarg, Model, Passage, Stage, World
from pipeconform.report.html.case_picture import block_words, draw_case
from tests.report.html.conftest import parse

LINEAR = Stage(blocks=(blocks.Linear(),))


def case(*stages, p=None, **others):
    p = p or len(stages)
    return Case(
        model=Model(width=1, stages=stages, **others),
        schedule="GPipe",
        world=World(size=p, pipeline_ranks=tuple(range(p))),
        program=(Eval(batch_size=1, num_microbatches=1),),
        stages_per_rank=len(stages) // p,
    )


def drawn(one, *, placement=Placement.LOOP, bad_stage=None, bad_rank=None):
    owners = placement_of(placement, num_ranks=one.num_ranks, num_stages=one.num_stages)
    labels = [f"rank {rank}" for rank in range(one.num_ranks)]
    return parse(draw_case(one, owners=owners, labels=labels, bad_stage=bad_stage, bad_rank=bad_rank)).one(
        "svg"
    )


def words(picture):
    return [text.text for text in picture.all("text")]


def lanes_of(picture):
    """Per stage, in order, the lane that its box lies in."""
    lanes = [float(lane.attributes["y"]) for lane in picture.all("rect", cls="lane-back")]
    boxes = [
        (float(box.attributes["x"]), float(box.attributes["y"])) for box in picture.all("rect", cls="stage")
    ]
    return [max(k for k, top in enumerate(lanes) if top <= y) for _, y in sorted(boxes)]


@pytest.mark.parametrize(
    ("placement", "lanes"),
    [
        (Placement.LOOP, [0, 1, 0, 1]),
        (Placement.V, [0, 1, 1, 0]),
        (Placement.MIRROR, [0, 1, 0, 1, 0, 1, 0, 1]),
    ],
)
def test_every_stage_lies_in_the_lane_of_each_rank_that_owns_it(placement, lanes):
    assert lanes_of(drawn(case(*(LINEAR,) * 4, p=2), placement=placement)) == lanes


def test_the_stage_and_the_rank_at_fault_are_marked_in_words():
    picture = drawn(case(LINEAR, LINEAR), bad_stage=1, bad_rank=1)

    assert words(picture).count("✗ here") == 1
    assert "✗ rank 1" in words(picture)
    assert [box.has(cls="bad") for box in picture.all("rect", cls="stage")] == [False, True]


def test_nothing_is_marked_where_no_place_is_known():
    assert not any("✗" in word for word in words(drawn(case(LINEAR, LINEAR))))


def test_frozen_parts_keyword_arguments_and_tensors_that_pass_are_named():
    frozen = Stage(blocks=(blocks.Linear(), blocks.Norm(frozen=True)), frozen=True)
    one = case(
        LINEAR,
        frozen,
        LINEAR,
        container="tuple",
        kwargs=(Kwarg(stage=2),),
        passages=(Passage(kind="scalar", source=0, last=2, users=(2,)),),
    )
    found = words(drawn(one))

    assert {
        "frozen",
        "keyword: tensor",
        "makes a scalar tensor",
        "uses the scalar tensor",
        "scalar tensor",
    } <= {*found}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (blocks.Linear(), "Linear"),
        (blocks.Linear(bias=False), "Linear, no bias"),
        (blocks.Linear(frozen=True), "Linear, frozen"),
        (blocks.Layout(kind="expanded"), "Layout, expanded"),
        (blocks.Shared(), "Shared, used twice"),
        (blocks.Tied(what="bias"), "Tied, same bias"),
    ],
)
def test_a_block_is_told_in_a_word_or_two(block, said):
    assert block_words(block, LINEAR) == said


def test_every_block_fits_its_box():
    """The widest words there are, at the width that a letter of the page's font has."""
    many = case(Stage(blocks=(blocks.Checkpointed(reentrant=True, dropout=True, frozen=True),)), LINEAR)
    picture = drawn(many)
    widest = max(picture.all("text", cls="block-words"), key=lambda text: len(text.text))
    box = picture.all("rect", cls="block")[0]

    assert len(widest.text) * 6.3 < float(box.attributes["width"])


def test_a_stage_without_blocks_is_an_empty_box():
    picture = drawn(case(Stage(blocks=()), Stage(blocks=())))

    assert len(picture.all("rect", cls="stage")) == 2
