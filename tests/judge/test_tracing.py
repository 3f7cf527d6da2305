"""Chapter TRC on evidence without a fault, changed in one place."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from pipeconform.adapter import Feature, GradientScale
from pipeconform.bounds.gauge import Gauge
from pipeconform.case.blocks import BatchNorm, Linear, Shared
from pipeconform.case.case import Case, Eval, Split, Stage, Train
from pipeconform.judge import tracing
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.forward import batch_order_is_kept
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Known, Named, Observation, StepShown, Structure
from pipeconform.oracle.full_model import reference
from tests.case.examples import EVERYTHING, small_case, with_model

keys_are_the_models = JUDGEMENTS["TRC-2"].judge
right_or_refused = JUDGEMENTS["TRC-4"].judge
shapes_are_known = JUDGEMENTS["TRC-5"].judge

CAPABILITIES = dataclasses.replace(EVERYTHING, scale=GradientScale(at="loss"))


def _case(**split: object) -> Case:
    return with_model(small_case(), split=Split(**split))


def _merged(outputs: tuple[Structure, ...]) -> Structure:
    merged = [
        torch.cat([leaf.tensor() for leaf in leaves])
        for leaves in zip(*(one.leaves() for one in outputs), strict=True)
    ]
    return Structure.of(merged[0] if len(merged) == 1 else tuple(merged))


def _part(values: Named, stage: int) -> Named:
    return {name: value for name, value in values.items() if name.startswith(f"stages.{stage}.")}


def honest(case: Case) -> Evidence:
    """What two ranks would show that own one stage each and do everything right."""
    expected = reference(case, scale=CAPABILITIES.scale)
    shown = []
    for rank in range(2):
        steps = tuple(
            StepShown(
                step=one.step,
                output=_merged(one.outputs) if rank and one.outputs else None,
                losses=one.losses if rank and one.losses else None,
                gradients={rank: _part(one.gradients[0], rank)},
                buffers={rank: _part(one.buffers[0], rank)},
                parameters={rank: _part(one.parameters[0], rank)},
            )
            for one in expected.steps
        )
        keys = tuple(_part(expected.steps[0].parameters[0], rank))
        known = (Known(producer=0, consumer=1, tensors=(((2, 3), "float64"),)),) if rank == 0 else ()
        shown.append(
            Observation(rank=rank, pipeline_rank=rank, keys={rank: keys}, boundaries=known, steps=steps)
        )
    return Evidence(
        case=case,
        capabilities=CAPABILITIES,
        shown=tuple(shown),
        expected=expected,
        bounded=lambda bounds: reference(case, scale=CAPABILITIES.scale, bounds=bounds),
    )


def _changed(evidence: Evidence, rank: int, **changes: object) -> Evidence:
    shown = list(evidence.shown)
    shown[rank] = msgspec.structs.replace(shown[rank], **changes)
    return dataclasses.replace(evidence, shown=tuple(shown))


def _with_gradients(evidence: Evidence, rank: int, gradients: Named) -> Evidence:
    first, *others = evidence.shown[rank].steps
    return _changed(
        evidence, rank, steps=(msgspec.structs.replace(first, gradients={rank: gradients}), *others)
    )


def _kinds(findings) -> list[str]:
    return [finding.kind for finding in findings]


JUDGES = (tracing.stages_equal_the_model, keys_are_the_models, shapes_are_known)


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.__name__)
@pytest.mark.parametrize("by", ["annotations", "policy", "points"])
def test_nothing_is_found_where_nothing_is_wrong(judge, by: str) -> None:
    assert _kinds(judge(honest(_case(by=by)))) == []


def test_a_wrong_gradient_is_found_under_its_name() -> None:
    evidence = honest(_case())
    gradients = dict(evidence.shown[0].steps[0].gradients[0])
    name = "stages.0.blocks.0.weight"
    gradients[name] = Array.of(gradients[name].tensor() * 1.5)
    (found,) = tracing.stages_equal_the_model(_with_gradients(evidence, 0, gradients))

    assert (found.kind, found.rank, found.stage, found.step) == ("gradient value", 0, 0, 0)
    assert name in found.message


def test_gradients_under_a_foreign_name_are_missing() -> None:
    evidence = honest(_case())
    gradients = {f"submod.{name}": value for name, value in evidence.shown[0].steps[0].gradients[0].items()}

    assert _kinds(tracing.stages_equal_the_model(_with_gradients(evidence, 0, gradients))) == [
        "gradient missing"
    ]


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (("stages.0.blocks.0.weight", "stages.0.blocks.0.bias", "x"), "foreign key"),
        (("stages.0.blocks.0.weight",), "key missing"),
        (
            ("stages.0.blocks.0.weight", "stages.0.blocks.0.bias", "stages.1.blocks.0.bias"),
            "key twice",
        ),
    ],
)
def test_wrong_keys_are_found(keys: tuple[str, ...], kind: str) -> None:
    assert _kinds(keys_are_the_models(_changed(honest(_case()), 0, keys={0: keys}))) == [kind]


def test_a_shared_parameter_may_be_in_two_stages() -> None:
    case = _case(tied=True)
    names = tuple(tracing.aliases_in(case))
    first = tuple(name for name in names if name.startswith("stages.0"))
    second = tuple(name for name in names if name.startswith("stages.1"))
    evidence = _changed(_changed(honest(case), 0, keys={0: first}), 1, keys={1: second})

    assert _kinds(keys_are_the_models(evidence)) == []


def test_a_module_that_is_called_twice_may_be_cut_between_its_calls() -> None:
    shared = with_model(_case(by="policy"), stages=(Stage(blocks=(Shared(),)), Stage(blocks=(Linear(),))))
    evidence = honest(shared)
    both = (*evidence.shown[0].keys[0], *evidence.shown[1].keys[1])

    assert _kinds(keys_are_the_models(_changed(evidence, 1, keys={1: both}))) == []


@pytest.mark.parametrize(
    ("boundaries", "kind"),
    [
        ((), "boundary unknown"),
        ((Known(producer=0, consumer=1, tensors=(((2, 3), "float32"),)),), "boundary known wrongly"),
        ((Known(producer=0, consumer=1, tensors=(((4, 3), "float64"),)),), "boundary known wrongly"),
    ],
)
def test_what_is_said_of_boundaries_is_compared(boundaries: tuple[Known, ...], kind: str) -> None:
    assert _kinds(shapes_are_known(_changed(honest(_case()), 0, boundaries=boundaries))) == [kind]


def test_what_is_known_of_every_boundary_counts_as_compared() -> None:
    """Here there is one; all else that the requirement compares, two other judgements compare, too."""

    def compared(judge, evidence: Evidence) -> int:
        made = dataclasses.replace(evidence, gauge=Gauge())
        list(judge(made))
        return made.gauge.compared

    evidence = dataclasses.replace(honest(_case()), shown=())
    others = (tracing.stages_equal_the_model, batch_order_is_kept)

    assert compared(shapes_are_known, evidence) == sum(compared(one, evidence) for one in others) + 1


def test_a_policy_may_cut_elsewhere_but_knows_the_dtype() -> None:
    inside = (Known(producer=0, consumer=1, tensors=(((2, 3), "float64"), ((2, 6), "float64"))),)
    wrong = (Known(producer=0, consumer=1, tensors=(((2, 3), "float32"),)),)
    evidence = honest(_case(by="policy"))

    assert _kinds(shapes_are_known(_changed(evidence, 0, boundaries=inside))) == []
    assert _kinds(shapes_are_known(_changed(evidence, 0, boundaries=wrong))) == ["boundary known wrongly"]


def test_an_output_that_is_too_long_is_found() -> None:
    evidence = honest(_case())
    first, *others = evidence.shown[1].steps
    longer = Structure.of(torch.cat([first.output.leaves()[0].tensor()] * 2))
    steps = (msgspec.structs.replace(first, output=longer), *others)

    assert "output length" in _kinds(shapes_are_known(_changed(evidence, 1, steps=steps)))


@pytest.mark.parametrize("wrong", ["unknown", "uncalled", "empty"])
def test_a_wrong_point_that_is_accepted_is_found(wrong: str) -> None:
    evidence = dataclasses.replace(honest(_case()), case=_case(by="points", wrong=wrong))

    assert _kinds(right_or_refused(evidence)) == [f"{wrong} split point accepted"]


@pytest.mark.parametrize(("after", "word"), [(False, "before"), (True, "after")])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("unknown", "names no submodule"),
        ("uncalled", "names a submodule that is never called"),
        ("empty", "leaves a stage without any computation"),
    ],
)
def test_what_is_wrong_with_a_split_point_is_told_in_words(
    after: bool, word: str, wrong: str, words: str
) -> None:
    said = tracing.split_mistake(_case(by="points", wrong=wrong, after=after))

    assert said.startswith(f"the split point {word} '")
    assert said.endswith(f" {words}")


def test_a_branch_that_is_followed_rightly_is_right() -> None:
    assert _kinds(right_or_refused(honest(_case(wrong="branch")))) == []


def test_an_early_output_must_come_with_its_own_values() -> None:
    early_outputs = JUDGEMENTS["TRC-7"].judge
    right = honest(_case(early="watched"))
    output = right.shown[1].steps[0].output
    assert output is not None
    result, early = (leaf.tensor() for leaf in output.leaves())

    def kinds(*returned: torch.Tensor) -> list[str]:
        steps = list(right.shown[1].steps)
        changed = Structure.of(returned if len(returned) > 1 else returned[0])
        steps[0] = msgspec.structs.replace(steps[0], output=changed)
        return _kinds(early_outputs(_changed(right, 1, steps=tuple(steps))))

    assert kinds(result, early) == []
    assert "output missing" in kinds(result)
    assert "output value" in kinds(result, early + 1.0)


def test_an_error_must_name_the_point() -> None:
    case = _case(by="points", wrong="unknown")
    clear, unclear = "there is no 'stages.8'", "no attribute '8'"

    def kinds(case, *texts) -> list[str]:
        return _kinds(tracing.refusal_is_clear(case, texts, Gauge()))

    assert kinds(case, clear, clear) == []
    assert kinds(case, clear, unclear) == ["unknown split point not named"]
    assert kinds(case, unclear, clear) == ["unknown split point not named"]
    assert kinds(_case(wrong="branch"), unclear) == []


def test_every_error_and_every_accepted_point_counts_as_compared() -> None:
    gauge = Gauge()
    list(tracing.refusal_is_clear(_case(by="points", wrong="unknown"), ["'stages.8'", "'stages.8'"], gauge))
    assert gauge.compared == 2

    evidence = dataclasses.replace(
        honest(_case()), case=_case(by="points", wrong="empty"), gauge=(accepted := Gauge())
    )
    assert len(_kinds(right_or_refused(evidence))) == accepted.compared == 1


def test_an_error_about_another_shape_tells_the_two_apart() -> None:
    case = with_model(small_case(), sequence=2, split=Split(longer=True))
    run = {"batch_size": 4, "num_microbatches": 2}
    case = msgspec.structs.replace(case, program=(Train(**run), Train(**run)))
    right = "input 0 of stage 0 is float64[2, 3, 3], but float64[2, 2, 3] was traced"
    wrong = "input 0 of stage 0 is float64[2, 2, 3], but float64[2, 3, 3] was traced"

    assert _kinds(tracing.shapes_are_told_apart(case, [right, right])) == []
    assert _kinds(tracing.shapes_are_told_apart(case, [right, wrong])) == ["shapes exchanged"]
    assert _kinds(tracing.shapes_are_told_apart(case, ["a guard of the graph failed"])) == []
    split = msgspec.structs.replace(case.model.split, longer=False, shorter_example=True)
    shorter = msgspec.structs.replace(case, model=msgspec.structs.replace(case.model, split=split))
    assert _kinds(tracing.shapes_are_told_apart(shorter, [right])) == []
    assert _kinds(tracing.shapes_are_told_apart(shorter, [wrong])) == ["shapes exchanged"]


def test_every_gradient_of_every_stage_is_compared_and_only_the_first_wrong_one_is_told() -> None:
    evidence = honest(_case())
    for rank in (0, 1):
        for name, value in evidence.shown[rank].steps[0].gradients[rank].items():
            gradients = {**evidence.shown[rank].steps[0].gradients[rank], name: Array.of(value.tensor() + 1)}
            (found,) = tracing.stages_equal_the_model(_with_gradients(evidence, rank, gradients))

            assert (found.kind, found.rank, found.stage) == ("gradient value", rank, rank)
            assert name in found.message
    both = evidence
    for rank in (0, 1):
        doubled = {
            n: Array.of(v.tensor() * 3) for n, v in evidence.shown[rank].steps[0].gradients[rank].items()
        }
        both = _with_gradients(both, rank, doubled)
    assert len(list(tracing.stages_equal_the_model(both))) == 1


def test_buffers_are_not_compared_of_an_engine_that_shows_no_state() -> None:
    case = with_model(_case(), stages=(Stage(blocks=(BatchNorm(),)), Stage(blocks=(Linear(),))))
    evidence = honest(case)
    first, *others = evidence.shown[0].steps
    silent = _changed(evidence, 0, steps=(msgspec.structs.replace(first, buffers={}), *others))
    without = dataclasses.replace(CAPABILITIES, features=CAPABILITIES.features - {Feature.STATE})

    assert _kinds(tracing.stages_equal_the_model(silent)) == ["buffer missing"]
    stateless = dataclasses.replace(silent, capabilities=without)
    assert _kinds(tracing.stages_equal_the_model(stateless)) == []


def test_buffers_are_compared_after_evaluation_too() -> None:
    case = with_model(_case(), stages=(Stage(blocks=(BatchNorm(),)), Stage(blocks=(Linear(),))))
    run = {"batch_size": 4, "num_microbatches": 2}
    evidence = honest(msgspec.structs.replace(case, program=(Train(**run), Eval(**run))))
    *first, last = evidence.shown[0].steps
    name = "stages.0.blocks.0.norm.running_mean"
    moved = {**last.buffers[0], name: Array.of(last.buffers[0][name].tensor() + 1)}
    steps = (*first, msgspec.structs.replace(last, buffers={0: moved}))

    assert _kinds(tracing.stages_equal_the_model(evidence)) == []
    assert _kinds(tracing.stages_equal_the_model(_changed(evidence, 0, steps=steps))) == ["buffer value"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, ""),
        (1, "'a'"),
        (3, "'a', 'b', 'c'"),
        (4, "'a', 'b', 'c' and 1 more"),
        (6, "'a', 'b', 'c' and 3 more"),
    ],
)
def test_of_many_names_three_are_told_and_how_many_more_there_are(number: int, words: str) -> None:
    assert tracing.some_of("abcdef"[:number]) == words
