import re
from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeconform.case.blocks import Attention, Decoder, Embedding, Head, Linear
from pipeconform.case.by_hand import ByHand
from pipeconform.case.case import (
    Case,
    Eval,
    Kwarg,
    LossSpec,
    Model,
    Optimize,
    Stage,
    Train,
    World,
    Zero,
    decode_case,
    encode_case,
    format_case,
)
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.strategies import cases
from pipeconform.case.focus import Focus, Limits
from pipeconform.errors import BadCaseError
from tests.case.examples import EVERYTHING, small_case, with_model

LIMITS = Limits(capabilities=EVERYTHING)
CLAIMED = [(s, f) for s in EVERYTHING.schedules for f in Focus if is_claimed(f, s, EVERYTHING)]
SOME_CASE = st.sampled_from(CLAIMED).flatmap(lambda pair: cases(LIMITS, *pair))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(SOME_CASE)
def test_a_case_survives_its_json_form(case: Case) -> None:
    again = decode_case(format_case(case))

    assert (again, again.digest) == (case, case.digest)


def test_the_digest_is_the_same_on_every_machine() -> None:
    assert small_case().digest == "1a1ddce31612"


def test_the_json_form_names_its_format() -> None:
    assert msgspec.json.decode(encode_case(small_case()))["format"] == 1


def test_the_repr_leaves_out_what_is_default() -> None:
    assert (
        repr(small_case().model)
        == "Model(width=3, stages=(Stage(blocks=(Linear(),)), Stage(blocks=(Linear(),))))"
    )


IMPOSSIBLE = {
    "more ranks than stages": (
        lambda: small_case(world=World(size=3, pipeline_ranks=(0, 1, 2))),
        "model.stages",
    ),
    "a rank outside the world": (
        lambda: small_case(world=World(size=2, pipeline_ranks=(0, 2))),
        "pipeline_ranks",
    ),
    "ranks out of order": (lambda: small_case(world=World(size=2, pipeline_ranks=(1, 0))), "ascending"),
    "nothing to run": (lambda: small_case(program=(Zero(),)), "nothing would be run"),
    "an empty microbatch": (
        lambda: small_case(program=(Eval(batch_size=1, num_microbatches=2),)),
        "program[0]",
    ),
    "a step without optimizer": (
        lambda: small_case(program=(Train(batch_size=1, num_microbatches=1), Optimize())),
        "no optimizer",
    ),
    "attention without sequence": (
        lambda: with_model(small_case(), stages=(Stage(blocks=(Attention(),)),) * 2),
        "attention",
    ),
    "carried tensors without container": (lambda: with_model(small_case(), carried=("mask",)), "container"),
    "tokens without embedding": (lambda: with_model(small_case(), tokens=True), "embedding"),
    "an embedding without tokens": (
        lambda: with_model(small_case(), stages=(Stage(blocks=(Embedding(),)), Stage(blocks=(Linear(),)))),
        "embedding",
    ),
    "classes without cross-entropy": (lambda: with_model(small_case(), classes=3), "cross_entropy"),
    "cross-entropy without classes": (
        lambda: small_case(loss=LossSpec(kind="cross_entropy")),
        "cross_entropy",
    ),
    "a keyword argument for no stage": (
        lambda: with_model(small_case(), kwargs=(Kwarg(stage=2),)),
        "outside",
    ),
    "a decoder without a sequence": (
        lambda: with_model(small_case(), stages=(Stage(blocks=(Decoder(),)),) * 2),
        "model.sequence",
    ),
    "positions without a decoder": (
        lambda: with_model(small_case(), kwargs=(Kwarg(stage=1, kind="positions"),)),
        "decoder",
    ),
    "two masks for one stage": (
        lambda: with_model(
            small_case(),
            stages=(Stage(blocks=(Decoder(),)),) * 2,
            sequence=2,
            kwargs=(Kwarg(stage=1, kind="mask"), Kwarg(stage=1, kind="mask")),
        ),
        "twice",
    ),
    "batch dimension without sequence": (lambda: with_model(small_case(), batch_dim=1), "batch_dim"),
    "no width": (lambda: with_model(small_case(), width=0), "width"),
    "another format": (lambda: small_case(format=2), "format 2"),
}


@pytest.mark.parametrize(("make", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_case_is_refused_in_words(make, said) -> None:
    with pytest.raises(BadCaseError, match=said.replace("[", r"\[")):
        make()


DAMAGED = {
    "not json": (b"{", "not JSON"),
    "another kind of json": (b"[]", "not a case"),
    "a missing field": (b'{"schedule":"GPipe"}', "missing required field"),
    "a wrong type": (encode_case(small_case()).replace(b'"GPipe"', b"3"), r"\$\.schedule"),
    "an unknown field": (encode_case(small_case()).replace(b'"seed"', b'"sead"'), "unknown field"),
    "an unknown block": (encode_case(small_case()).replace(b'"linear"', b'"lineal"'), r"\$\.model\.stages"),
    "an impossible case": (encode_case(small_case()).replace(b'"size":2', b'"size":1'), "pipeline_ranks"),
    "another format": (encode_case(small_case()).replace(b'"format":1', b'"format":9'), "format 9"),
}


@pytest.mark.parametrize(("data", "said"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_case_is_refused_with_its_source_and_place(data, said) -> None:
    with pytest.raises(BadCaseError, match=rf"^file\.json: .*{said}"):
        decode_case(data, source="file.json")


def test_a_model_prints_and_counts_its_parts() -> None:
    case = with_model(
        small_case(), stages=(Stage(blocks=(Linear(), Linear(bias=False))), Stage(blocks=(Linear(),)))
    )

    assert (case.num_ranks, case.num_stages, len(case.runs), len(list(case.blocks()))) == (2, 2, 2, 3)
    assert isinstance(case.model, Model)


@pytest.mark.parametrize(
    ("hand", "words"),
    [
        (ByHand(stage=2), "program[0].by_hand makes a mistake at a stage or microbatch that does not exist"),
        (
            ByHand(microbatch=2),
            "program[0].by_hand makes a mistake at a stage or microbatch that does not exist",
        ),
        (
            ByHand(mixed=True, mistake="weight_twice"),
            "program[0].by_hand cannot both be mixed and make a mistake",
        ),
        (
            ByHand(whole=True, mistake="forward_early"),
            "program[0].by_hand.mistake 'forward_early' needs a neighbour of that stage",
        ),
        (
            ByHand(whole=True, mistake="weight_first"),
            "program[0].by_hand has whole backwards: there is no weight part",
        ),
    ],
)
def test_a_step_by_hand_that_cannot_be_made_is_no_case(hand, words):
    with pytest.raises(BadCaseError, match=re.escape(words)):
        small_case(program=(Train(batch_size=4, num_microbatches=2, by_hand=hand),))


@pytest.mark.parametrize(
    ("loss", "possible"),
    [
        (LossSpec(kind="cross_entropy", reduction="sum", counted=True), True),
        (LossSpec(kind="cross_entropy", reduction="mean", counted=True), False),
        (LossSpec(kind="cross_entropy", reduction="sum", counted=True, scaled=True), False),
    ],
)
def test_a_counted_loss_is_a_sum_of_cross_entropies(loss, possible):
    stages = (Stage(blocks=(Linear(),)), Stage(blocks=(Head(),)))
    model = msgspec.structs.replace(small_case().model, classes=3, stages=stages)
    words = "loss.counted divides a sum: it needs loss.kind 'cross_entropy'"
    with nullcontext() if possible else pytest.raises(BadCaseError, match=re.escape(words)):
        small_case(model=model, loss=loss)
