"""A model is refused for one reason, in words, where one that differs little is possible."""

from __future__ import annotations

import pytest

from pipeconform.case.blocks import Attention, Decoder, Embedding, Head, Keeping, Linear, Rescaled
from pipeconform.case.case import Kwarg, Model, Passage, Split, Stage
from pipeconform.case.model import impossible_model

LINEAR = Stage(blocks=(Linear(),))
DECODES = Stage(blocks=(Linear(), Decoder()))
TOKENS = (Stage(blocks=(Embedding(), Linear())), LINEAR)


def _model(num_stages: int = 2, **fields) -> Model:
    return Model(**{"width": 3, "stages": (LINEAR,) * num_stages, **fields})


def _passing(source: int, last: int, *users: int, num_stages: int = 3) -> Model:
    one = Passage(kind="stream", source=source, last=last, users=users)
    right = Passage(kind="stream", source=0, last=1, users=(1,))
    return _model(num_stages, passages=(right, one, right), container="list")


def _split(num_stages: int = 3, **fields) -> Model:
    sequence = fields.pop("sequence", 0)
    return _model(num_stages, sequence=sequence, split=Split(**fields))


def _told(*kinds: str, stage: int = 1, **fields) -> Model:
    kwargs = tuple(Kwarg(stage=stage, kind=kind) for kind in kinds)
    return _model(kwargs=kwargs, **{"sequence": 2, "stages": (LINEAR, DECODES), **fields})


KEEPS, RESCALES = Stage(blocks=(Keeping(),)), Stage(blocks=(Rescaled(),))
OF_SPLIT = "model.split needs one floating tensor between stages"
OF_MERGED = "model.merged needs model.output 'tensor', batch_dim 0 and no model.split"
OF_DECODERS = "keyword arguments for decoders need a decoder block in their stage"
OF_CONTAINER = "carried tensors and passages need a container"
OF_TIES = "model.tied cannot be combined with model.split or model.classes"

PAIRS = {
    "the least width": (_model(width=1), _model(width=0), "model.width 0 must be at least 1"),
    "the least sequence": (_model(sequence=0), _model(sequence=-1), "model.width 3 must be at least 1"),
    "merged outputs": (_model(merged=("turned",)), _model(merged=("turned",), output="dict"), OF_MERGED),
    "merged by another dimension": (
        _model(batch_dim=1, sequence=2),
        _model(batch_dim=1, sequence=2, merged=("turned",)),
        OF_MERGED,
    ),
    "merged by a front end": (_split(), _model(3, merged=("total",), split=Split()), OF_MERGED),
    "a second dimension": (
        _model(batch_dim=1, sequence=1),
        _model(batch_dim=1),
        "model.batch_dim 1 needs a sequence",
    ),
    "arguments of the last stage": (
        _model(kwargs=(Kwarg(stage=1),)),
        _model(kwargs=(Kwarg(stage=2),)),
        "model.kwargs names a stage outside 0…1",
    ),
    "arguments of the first stage": (
        _model(kwargs=(Kwarg(stage=0),)),
        _model(kwargs=(Kwarg(stage=-1),)),
        "model.kwargs names a stage outside 0…1",
    ),
    "one argument of no stage": (
        _model(kwargs=(Kwarg(stage=0), Kwarg(stage=1))),
        _model(kwargs=(Kwarg(stage=0), Kwarg(stage=2))),
        "model.kwargs names a stage outside 0…1",
    ),
    "a turned argument": (
        _model(kwargs=(Kwarg(stage=0, kind="turned"),)),
        _model(kwargs=(Kwarg(stage=0, kind="turned"),), batch_dim=1, sequence=2),
        "a 'turned' keyword argument needs model.batch_dim 0",
    ),
    "rows": (
        _model(kwargs=(Kwarg(stage=0, kind="turned"), Kwarg(stage=0, kind="rows"))),
        _model(kwargs=(Kwarg(stage=1, kind="turned"), Kwarg(stage=0, kind="rows"))),
        "a 'rows' keyword argument needs a 'turned' one in its stage",
    ),
    "another argument is split in any dimension": (
        _model(kwargs=(Kwarg(stage=0, kind="whole"),), batch_dim=1, sequence=2),
        _model(kwargs=(Kwarg(stage=0, kind="turned"),), batch_dim=1, sequence=2),
        "a 'turned' keyword argument needs model.batch_dim 0",
    ),
    "attention": (
        _model(1, stages=(Stage(blocks=(Attention(),)),), sequence=1),
        _model(1, stages=(Stage(blocks=(Attention(),)),)),
        "an attention block needs model.sequence of at least 1",
    ),
    "a decoder": (
        _model(stages=(LINEAR, DECODES), sequence=1),
        _model(stages=(LINEAR, DECODES)),
        "a decoder block needs model.sequence of at least 1",
    ),
    "positions": (_told("positions"), _told("positions", stage=0), OF_DECODERS),
    "a mask": (_told("mask"), _told("mask", stage=0), OF_DECODERS),
    "another argument needs no decoder": (_told("tensor", stage=0), _told("mask", stage=0), OF_DECODERS),
    "positions for a front end": (_told("positions"), _told("positions", split=Split()), OF_DECODERS),
    "a block mask": (_told("block_mask"), _told("block_mask", stage=0), OF_DECODERS),
    "a window": (_told("window", "tensor"), _told("window", "positions"), "a block mask goes with no other"),
    "samples of a block mask": (
        _told("block_mask"),
        _told("block_mask", batch_dim=1),
        "block masks need model.batch_dim 0",
    ),
    "two arguments of a stage": (
        _told("positions", "mask", "tensor"),
        _told("mask", "positions", "mask"),
        "model.kwargs names an argument of a stage twice",
    ),
    "arguments of several kinds that scale": (
        _told("tensor", "mask"),
        _told("tensor", "number"),
        "model.kwargs names an argument of a stage twice",
    ),
    "what is carried": (
        _model(carried=("mask",), container="tuple"),
        _model(carried=("mask",)),
        OF_CONTAINER,
    ),
    "what passes": (
        _passing(0, 1),
        _model(passages=(Passage(kind="stream", source=0, last=1),)),
        OF_CONTAINER,
    ),
    "a passage from the first stage": (
        _passing(0, 1),
        _passing(-1, 1),
        "a passage from stage -1 to stage 1 does not fit 3 stages",
    ),
    "a passage to the last stage": (
        _passing(1, 2),
        _passing(1, 3),
        "a passage from stage 1 to stage 3 does not fit 3 stages",
    ),
    "a passage to a later stage": (
        _passing(1, 2),
        _passing(1, 1),
        "a passage from stage 1 to stage 1 does not fit 3 stages",
    ),
    "who uses a passage comes after its source": (
        _passing(0, 2, 1, 2),
        _passing(0, 2, 0, 2),
        "stages [0, 2] cannot use what passes from stage 0 to stage 2",
    ),
    "who uses a passage comes before its end": (
        _passing(0, 1, 1),
        _passing(0, 1, 2),
        "stages [2] cannot use what passes from stage 0 to stage 1",
    ),
    "two tied stages": (_model(3, tied=(0, 2)), _model(3, tied=(0,)), "model.tied [0] must be two or more"),
    "ascending ties": (_model(3, tied=(1, 2)), _model(3, tied=(2, 1)), "model.tied [2, 1] must be two"),
    "different tied stages": (_model(3, tied=(0, 1)), _model(3, tied=(1, 1)), "model.tied [1, 1] must be"),
    "ties of the last stage": (_model(3, tied=(0, 2)), _model(3, tied=(0, 3)), "model.tied [0, 3] must be"),
    "ties without a front end": (_split(), _model(3, tied=(0, 1), split=Split()), OF_TIES),
    "ties without classes": (_model(classes=3), _model(classes=3, tied=(0, 1)), OF_TIES),
    "tokens": (
        _model(tokens=True, stages=TOKENS),
        _model(tokens=True),
        "a token model begins with an embedding block, and only a token model does",
    ),
    "an embedding": (
        _model(tokens=True, stages=TOKENS),
        _model(stages=TOKENS),
        "a token model begins with an embedding block, and only a token model does",
    ),
    "gradients of inputs": (
        _model(input_requires_grad=True),
        _model(tokens=True, stages=TOKENS, input_requires_grad=True),
        "token inputs cannot require a gradient",
    ),
    "a front end with what is carried": (
        _split(),
        _model(3, carried=("mask",), container="tuple", split=Split()),
        OF_SPLIT,
    ),
    "a front end with a container": (_split(), _model(3, container="tuple", split=Split()), OF_SPLIT),
    "a front end with tokens": (_split(), _model(tokens=True, stages=TOKENS, split=Split()), OF_SPLIT),
    "a front end with classes": (
        _split(),
        _model(1, stages=(Stage(blocks=(Linear(), Head())),), classes=3, split=Split()),
        OF_SPLIT,
    ),
    "an early output": (
        _split(2, early="watched"),
        _split(1, early="watched"),
        "1 stages are too few for model.split",
    ),
    "an early output of samples": (
        _split(2, early="added", sequence=2),
        _model(2, sequence=2, batch_dim=1, split=Split(early="added")),
        "model.split.early needs model.batch_dim 0",
    ),
    "a keeping block behind the first boundary": (
        _model(stages=(LINEAR, KEEPS)),
        _model(stages=(KEEPS, LINEAR)),
        "model.stages[0] has a keeping block",
    ),
    "a keeping block at the beginning of its stage": (
        _model(stages=(LINEAR, KEEPS)),
        _model(stages=(LINEAR, Stage(blocks=(Linear(), Keeping())))),
        "model.stages[1] has a keeping block",
    ),
    "an input that is changed in place": (
        _model(stages=(RESCALES, LINEAR)),
        _model(stages=(LINEAR, RESCALES)),
        "a rescaled block is the first of all",
    ),
    "and needs no gradient": (
        _model(stages=(RESCALES, LINEAR)),
        _model(stages=(RESCALES, LINEAR), input_requires_grad=True),
        "a rescaled block is the first of all",
    ),
    "and is changed once": (
        _model(stages=(RESCALES, LINEAR)),
        _model(stages=(RESCALES, RESCALES)),
        "a rescaled block is the first of all",
    ),
    "a front end with one stage": (_split(1), _split(1, tied=True), "1 stages are too few for model.split"),
    "a tie within a model": (_split(2, tied=True), _split(1, tied=True), "1 stages are too few"),
    "a skip within a model": (_split(3, skip=True), _split(2, skip=True), "2 stages are too few"),
    "a skip counts more than a tie": (
        _split(3, skip=True, tied=True),
        _split(2, skip=True, tied=True),
        "2 stages are too few",
    ),
    "annotations inside": (
        _split(inside=True),
        _split(inside=True, by="points"),
        "model.split.inside needs model.split.by 'annotations', not 'points'",
    ),
    "longer sequences": (
        _split(longer=True, sequence=1),
        _split(longer=True),
        "model.split.longer and model.split.shorter_example need a sequence",
    ),
    "a shorter example": (
        _split(shorter_example=True, sequence=1),
        _split(shorter_example=True),
        "model.split.longer and model.split.shorter_example need a sequence",
    ),
    **{
        f"points that are {wrong}": (
            _split(wrong=wrong, by="points"),
            _split(wrong=wrong, by="policy"),
            f"model.split.wrong {wrong!r} needs model.split.by 'points', not 'policy'",
        )
        for wrong in ("unknown", "uncalled", "empty")
    },
    "code that branches, however it is split": (
        _split(wrong="branch", by="policy"),
        _split(wrong="unknown", by="policy"),
        "model.split.wrong 'unknown' needs model.split.by 'points'",
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), PAIRS.values(), ids=PAIRS)
def test_an_impossible_model_is_told_from_one_that_is_possible(possible, impossible, words) -> None:
    assert list(impossible_model(possible)) == []
    (reason,) = impossible_model(impossible)
    assert reason.startswith(words)


def test_every_reason_is_told() -> None:
    reasons = list(
        impossible_model(_model(width=0, batch_dim=1, carried=("mask",), kwargs=(Kwarg(stage=9),)))
    )

    assert [reason.split()[0] for reason in reasons] == [
        "model.width",
        "model.batch_dim",
        "model.kwargs",
        "carried",
    ]


def test_boundaries_are_alike_if_everything_passes_from_the_first_stage_to_the_last() -> None:
    assert not _model().boundaries_differ
    assert not _model(3, passages=(Passage(kind="stream", source=0, last=2),)).boundaries_differ
    assert _passing(0, 2).boundaries_differ
    assert _model(3, passages=(Passage(kind="stream", source=1, last=2),)).boundaries_differ


def test_arguments_of_decoders_have_a_name_of_their_own() -> None:
    names = [Kwarg(stage=1, kind=kind).name for kind in ("positions", "mask", "tensor", "number")]

    assert names == ["positions_1", "mask_1", "gain_1", "gain_1"]


def test_what_is_carried_enters_the_first_stage_too() -> None:
    assert (_model().num_inputs, _model(carried=("mask", "scale"), container="list").num_inputs) == (1, 3)
