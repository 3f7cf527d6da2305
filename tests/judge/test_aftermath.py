"""Cases with deliberate mistakes, judged from verdicts written by hand."""

import dataclasses

import pytest
import torch
from msgspec import structs

from pipeconform.adapter import ErrorContract
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.case.mistakes import Mistake
from pipeconform.judge.aftermath import Aftermath, answers_are_right, is_due, worded
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Status
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.array import Array
from pipeconform.observe.observation import RESUMED, WAITS_FOR_OTHERS, Failed, Structure
from pipeconform.ranks.frames import Frame
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, VerdictVector
from tests.judge.grid import evidence_of
from tests.judge.honest import CASES, changed, honest_example, with_value

nobody_dies = JUDGEMENTS["ERR-13"].aftermath
pipelines_recover = JUDGEMENTS["ERR-15"].aftermath

CASE = Case(
    model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(
        Train(batch_size=4, num_microbatches=2, mistake=Mistake(where="forward", how="raise", stage=1)),
    ),
)


def _aftermath(*verdicts, failed=None):
    return Aftermath(
        case=CASE,
        errors=ErrorContract(),
        verdicts=VerdictVector(verdicts),
        failed=failed or {},
        evidence=None,
        as_mistaken=lambda: pytest.fail("somebody raised, or nobody answered"),
        against=lambda case: pytest.fail("no plan was wrong"),
    )


def test_a_rank_that_dies_is_a_crash_whoever_else_waits():
    found = list(answers_are_right(_aftermath(Stuck(0.2, "waits"), Died(signal="SIGABRT"))))

    assert [(one.status, one.finding.kind, one.finding.rank) for one in found] == [
        (Status.CRASHED, "died: SIGABRT", 1)
    ]
    assert "rank 1 died (SIGABRT), when in step 0 the forward of stage 1 raises" in found[0].finding.message


def test_a_rank_that_waits_for_one_that_failed_is_a_hang():
    failed = {1: Failed(type="ValueError", message="bad", step=0)}
    (found,) = answers_are_right(_aftermath(Stuck(0.2, "waits"), Returned(None), failed=failed))

    assert (found.status, found.finding.kind, found.finding.rank) == (Status.HUNG, "others left waiting", 0)
    assert "and rank 1 raised" in found.finding.message
    assert "rank 1  raised    ValueError: bad" in found.verdicts


@pytest.mark.parametrize(
    ("said", "kind", "first"),
    [
        (f"raised ValueError, {WAITS_FOR_OTHERS}", "others left waiting", "and rank 0 raised"),
        (WAITS_FOR_OTHERS, "hang", "and no rank raised"),
    ],
)
def test_a_rank_that_waits_in_the_harness_is_not_the_one_that_waits_forever(said, kind, first):
    waits = Stuck(0.3, "waits for barrier", doing=said)
    (found,) = answers_are_right(_aftermath(waits, Stuck(0.3, "waits for receive", doing="step 0")))

    assert (found.status, found.finding.kind, found.finding.rank) == (Status.HUNG, kind, 1)
    assert found.finding.message.startswith("rank 1 waits forever")
    assert first in found.finding.message


def test_where_nothing_is_promised_any_error_will_do():
    failed = {rank: Failed(type="ValueError", message="bad", step=0) for rank in (0, 1)}

    assert list(answers_are_right(_aftermath(Returned(None), Returned(None), failed=failed))) == []


def test_where_an_error_is_promised_no_error_is_a_finding():
    kind = CASE.program[0].mistake.kind
    promising = dataclasses.replace(
        _aftermath(Returned(None), Returned(None)),
        errors=ErrorContract(promises={kind: ("ValueError",)}),
        evidence=RIGHT,
    )

    (found,) = answers_are_right(promising)

    assert (found.status, found.finding.kind, found.finding.stage) == (Status.FAILED, f"{kind}: accepted", 1)
    assert found.finding.message.endswith("no rank raised; promised: ValueError")


@pytest.mark.parametrize("number", [*range(1, 8), 10])
def test_every_requirement_about_mistakes_finds_one_that_is_accepted_and_a_rank_that_dies(number):
    judged = JUDGEMENTS[f"ERR-{number}"].aftermath
    kind = CASE.program[0].mistake.kind
    promising = dataclasses.replace(
        _aftermath(Returned(None), Returned(None)),
        errors=ErrorContract(promises={kind: ("ValueError",)}),
        evidence=RIGHT,
    )

    assert [one.finding.kind for one in judged(promising)] == [f"{kind}: accepted"]
    assert [one.status for one in judged(_aftermath(Returned(None), Died(signal="SIGABRT")))] == [
        Status.CRASHED
    ]


# ---------------------------------------------------------------------------- whoever is left, and new pipelines

BAD = {1: Failed(type="ValueError", message="bad", step=0)}


def test_only_hangs_and_errors_count_where_nobody_may_wait_for_who_failed():
    lonely = JUDGEMENTS["ERR-14"].aftermath

    assert [one.status for one in lonely(_aftermath(Stuck(0.2, "waits"), Returned(None), failed=BAD))] == [
        Status.HUNG
    ]
    assert list(lonely(_aftermath(Died(exit_code=3), Returned(None)))) == []


def test_that_nobody_waits_shows_only_where_somebody_failed_and_that_nobody_dies_always():
    for identifier, failed, number in (
        ("ERR-14", {}, 0),
        ("ERR-14", BAD, 2),
        ("ERR-13", {}, 2),
        ("ERR-13", BAD, 2),
    ):
        made = _aftermath(Returned(None), Returned(None), failed=failed)

        assert list(JUDGEMENTS[identifier].aftermath(made)) == []
        assert made.gauge.compared == number


def _recovered(evidence, *, failed=None, verdicts=None):
    made = _aftermath(
        *(verdicts or (Returned(None), Returned(None))), failed=BAD if failed is None else failed
    )
    evidence = dataclasses.replace(evidence, gauge=made.gauge)
    found = list(JUDGEMENTS["ERR-11"].aftermath(dataclasses.replace(made, evidence=evidence)))
    return [(one.status, one.finding.kind) for one in found], made.gauge.compared


def test_a_new_pipeline_after_an_error_gives_right_outputs_losses_and_gradients():
    found, compared = _recovered(RIGHT)

    assert found == []
    assert compared > 0
    for wrong, kind in ((WRONG_OUTPUT, "output value"), (WRONG, "loss value")):
        assert _recovered(wrong)[0] == [(Status.FAILED, f"after an error: {kind}")]


def test_where_nothing_failed_a_pipeline_did_not_recover_and_one_that_waits_is_told():
    assert _recovered(RIGHT, failed={}) == ([], 0)
    found, _ = _recovered(WRONG, verdicts=(Stuck(0.2, "waits"), Returned(None)))
    assert found == [(Status.HUNG, "others left waiting")]


# ------------------------------------------------------------------------------------ what is promised is kept

SHAPE = Mistake(where="output", how="inner", stage=0)  # [2, 4] instead of [2, 3]
CLEAR = Failed(type="ValueError", message="stage 0: output [2, 4], expected [2, 3]", step=2)
TOLD = Failed(type="RuntimeError", message="stage 0 failed", step=2)
ELSEWHERE = Failed(type="RuntimeError", message="connection closed", step=2)


def _promised(mistake=SHAPE, *, failed, tells=False, evidence=None, step=2):
    """A promise about a mistake in a step of three, judged."""
    program = tuple(
        structs.replace(one, mistake=mistake) if number == step else one
        for number, one in enumerate(CASES["plain"].program)
    )
    aftermath = dataclasses.replace(
        _aftermath(Returned(None), Returned(None), failed=failed),
        case=structs.replace(CASES["plain"], program=program),
        errors=ErrorContract(promises={mistake.kind: ("errors.ValueError",)}, tells_others=tells),
        evidence=RIGHT if evidence is None else evidence,
    )
    found = list(answers_are_right(aftermath))
    assert aftermath.gauge.compared == 2
    return [
        (one.status, one.finding.kind, one.finding.step, one.finding.rank, one.finding.stage) for one in found
    ]


def test_the_promised_error_with_all_it_must_name_is_right_whatever_others_say():
    assert _promised(failed={0: CLEAR}) == []
    assert _promised(failed={0: CLEAR, 1: ELSEWHERE}) == []


def test_an_error_derived_from_the_promised_one_is_the_promised_one():
    derived = structs.replace(
        CLEAR, type="engine.ShapeError", bases=("engine.Error", "ValueError", "Exception")
    )
    assert _promised(failed={0: derived}) == []
    other = structs.replace(derived, bases=("engine.Error", "Exception"))
    assert [kind for _, kind, *_ in _promised(failed={0: other})] == [
        "output_shape: raised engine.ShapeError"
    ]


def test_a_promised_error_that_does_not_name_the_stage_is_told_with_its_rank():
    wordless = structs.replace(CLEAR, message="output [2, 4], expected [2, 3]")

    assert _promised(failed={0: wordless, 1: CLEAR}) == [
        (Status.FAILED, "output_shape: stage not named", 2, 0, 0)
    ]


def test_an_error_on_another_rank_only_is_on_the_wrong_rank():
    assert _promised(failed={1: CLEAR}) == [(Status.FAILED, "output_shape: wrong rank", 2, None, 0)]


@pytest.mark.parametrize(
    ("mistake", "rank"),
    [
        (SHAPE, 0),
        (structs.replace(SHAPE, stage=1), 1),
        (Mistake(where="input", how="inner", stage=1), 0),
        (Mistake(where="loss", how="raise"), 1),
    ],
)
def test_a_mistake_shows_where_its_stage_is(mistake, rank):
    (found,) = _promised(mistake, failed={1 - rank: CLEAR})

    assert found[1] == f"{mistake.kind}: wrong rank"


def test_a_mistake_of_the_batch_shows_on_every_rank():
    scarce = Mistake(where="batch", how="scarce")

    assert _promised(scarce, failed={1: structs.replace(CLEAR, message="one sample")}) == []


@pytest.mark.parametrize(
    ("mistake", "stage"),
    [(SHAPE, 0), (Mistake(where="loss", how="raise", stage=0), 1)],
    ids=["an output", "the loss"],
)
def test_others_name_the_stage_where_that_is_promised(mistake, stage):
    cause = ("pipeconform.case.build.mistakes.DeliberateError", "on purpose")
    clear = (
        CLEAR
        if mistake is SHAPE
        else structs.replace(CLEAR, message="rank 1, stage 1: loss", causes=(cause,))
    )
    told = structs.replace(TOLD, message=f"stage {stage} failed")

    assert _promised(mistake, failed={stage: clear, 1 - stage: told}, tells=True) == []
    assert _promised(mistake, failed={stage: clear, 1 - stage: ELSEWHERE}) == []
    assert _promised(mistake, failed={stage: clear, 1 - stage: ELSEWHERE}, tells=True) == [
        (Status.FAILED, f"{mistake.kind}: cause not told to others", 2, 1 - stage, mistake.stage)
    ]


@pytest.mark.parametrize("where", ["input", "batch"])
def test_of_what_the_user_gave_wrong_others_need_not_name_a_stage(where):
    mistake = Mistake(where=where, how={"input": "inner", "batch": "scarce"}[where])
    clear = structs.replace(CLEAR, message="the batch: an argument has shape [2, 4], expected [2, 3]")
    failed = {0: clear, 1: ELSEWHERE if where == "input" else clear}

    assert _promised(mistake, failed=failed, tells=True) == []


def test_wrong_values_that_were_sent_before_the_error_are_told():
    first, *others = RIGHT.shown[1].steps[2].forwards
    (given,) = first.inputs
    moved = structs.replace(given, array=Array.of(given.array.tensor() + 1))
    wrong = changed(RIGHT, rank=1, step=2, forwards=(structs.replace(first, inputs=(moved,)), *others))

    assert _promised(failed={0: CLEAR}, evidence=wrong) == [
        (Status.FAILED, "output_shape: sent before", 2, None, 0)
    ]


def test_an_error_is_known_by_its_name_whatever_module_it_is_from():
    assert _promised(failed={0: structs.replace(CLEAR, type="engine.ValueError")}) == []
    assert [one[1] for one in _promised(failed={0: structs.replace(CLEAR, type="engine.KeyError")})] == [
        "output_shape: raised engine.KeyError"
    ]


@pytest.mark.parametrize(
    ("mistake", "step", "due"),
    [
        (SHAPE, 0, False),
        (SHAPE, 2, True),
        (structs.replace(SHAPE, microbatch=1), 0, True),
        (Mistake(where="output", how="more", stage=0), 0, False),
        (Mistake(where="output", how="none", stage=0), 0, True),
    ],
)
def test_what_is_wrong_only_beside_an_earlier_step_is_not_due_in_the_first(mistake, step, due):
    assert is_due(CASES["plain"], step, mistake) is due
    if not due:
        failed = {rank: structs.replace(ELSEWHERE, step=step) for rank in (0, 1)}
        assert _promised(mistake, failed=failed, step=step) == []  # any error will do


# ------------------------------------------------------------------------------------------- nothing promised


def _accepted(mistake, evidence):
    """Nobody raised, nothing was promised, and the model itself gives the reference of `evidence`."""
    step = Train(batch_size=6, num_microbatches=3, mistake=mistake)
    aftermath = dataclasses.replace(
        _aftermath(Returned(None), Returned(None)),
        case=structs.replace(CASES["plain"], program=(step,)),
        evidence=evidence,
        as_mistaken=lambda: evidence,
    )
    return [(one.status, one.finding.kind, one.finding.rank) for one in answers_are_right(aftermath)]


def test_a_mistake_that_nobody_refuses_and_that_the_model_takes_must_give_what_the_model_gives():
    raises = Mistake(where="forward", how="raise", stage=1)
    wrong_output = dataclasses.replace(
        RIGHT,
        shown=(RIGHT.shown[0], structs.replace(RIGHT.shown[1], steps=WRONG_OUTPUT.shown[1].steps)),
    )

    assert _accepted(SHAPE, RIGHT) == []
    assert _accepted(SHAPE, WRONG) == [(Status.FAILED, "output_shape: silent wrong result", 1)]
    assert _accepted(SHAPE, wrong_output) == [(Status.FAILED, "output_shape: silent wrong result", 1)]
    assert _accepted(raises, WRONG) == [(Status.FAILED, "exception: silent wrong result", 1)]


def test_a_mistake_that_the_model_itself_refuses_must_not_be_accepted():
    refusing = dataclasses.replace(RIGHT, expected=structs.replace(RIGHT.expected, failed="ValueError: bad"))

    assert _accepted(SHAPE, refusing) == [(Status.FAILED, "output_shape: accepted", None)]


def test_replicas_are_judged_one_by_one_where_nothing_is_promised():
    made = evidence_of("replicas, three steps")
    wrong = with_value(made, "gradients", 0, "blocks.0.weight", None, rank=2)

    def told(evidence):
        program = (structs.replace(made.case.program[0], mistake=SHAPE), *made.case.program[1:])
        aftermath = dataclasses.replace(
            _aftermath(*[Returned(None)] * 4),
            case=structs.replace(made.case, program=program),
            as_mistaken=lambda: evidence,
        )
        return [(one.finding.kind, one.finding.rank) for one in answers_are_right(aftermath)]

    assert told(made) == []
    assert told(wrong) == [("output_shape: silent wrong result", 2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_without_the_mistake_is_an_error_after_it(rank):
    ends = [Returned(None), Returned(None)]
    ends[rank] = Raised(type="RuntimeError", message="closed")
    failed = {1 - rank: Failed(type="ValueError", message="bad", step=0)}
    (found,) = answers_are_right(_aftermath(*ends, failed=failed))

    assert (found.status, found.finding.kind, found.finding.rank) == (
        Status.ERROR,
        "after an error: raised RuntimeError",
        rank,
    )


def test_a_finding_in_other_words_is_about_the_same_place():
    known = Finding(kind="a", message="b", step=1, rank=2, stage=3, microbatch=4)
    other = worded(known, kind="c", message="d")

    assert other == dataclasses.replace(known, kind="c", message="d")


def test_only_deaths_count_where_nobody_may_die():
    assert list(nobody_dies(_aftermath(Stuck(0.2, "waits"), Returned(None)))) == []
    assert [one.status for one in nobody_dies(_aftermath(Died(exit_code=3), Returned(None)))] == [
        Status.CRASHED
    ]


@pytest.mark.parametrize(
    ("over", "kinds"), [("microbatch", ["input_shape: silent wrong result"]), ("batch", [])]
)
def test_a_loss_over_the_merged_output_is_not_held_against_losses_over_its_parts_where_it_broadcasts(
    over, kinds
):
    """An output of one dimension more is broadcast against its target, the whole otherwise than the parts."""
    step = Train(batch_size=4, num_microbatches=2, mistake=Mistake(where="input", how="ndim"))
    other = structs.replace(RIGHT.expected.steps[0], losses=RIGHT.expected.steps[0].losses[:1] * 2)
    evidence = dataclasses.replace(
        RIGHT,
        capabilities=dataclasses.replace(RIGHT.capabilities, loss_over=over),
        expected=structs.replace(RIGHT.expected, steps=(other, *RIGHT.expected.steps[1:])),
        bounded=lambda bounds: pytest.fail("asked"),
    )
    found = _aftermath(Returned(None), Returned(None))
    found = dataclasses.replace(
        found,
        case=structs.replace(CASE, program=(step,)),
        evidence=evidence,
        as_mistaken=lambda: evidence,
    )

    assert [one.finding.kind for one in answers_are_right(found)] == kinds


def test_a_refusal_of_the_batch_on_the_ranks_of_the_pipeline_is_one_whatever_bystanders_do():
    assert [kind for _, kind in _resumed({1: 0, 2: 0})] == ["after an error: loss value"]
    for steps in ({1: 0}, {2: 0}, {0: 0, 1: 0}, {1: 0, 2: None}):
        assert _resumed(steps) == []


def _resumed(steps):
    """The same pipeline on ranks 1 and 2 of three, where ranks failed in the steps given; it is wrong afterwards."""
    mistake = Mistake(where="batch", how="scarce")
    case = structs.replace(
        CASE,
        world=World(size=3, pipeline_ranks=(1, 2)),
        program=(Train(batch_size=4, num_microbatches=2, mistake=mistake),),
    )
    failed = {rank: Failed(type="ValueError", message="one", step=step) for rank, step in steps.items()}
    made = dataclasses.replace(
        _aftermath(*[Returned(None)] * 3, failed=failed), case=case, errors=PROMISED, evidence=WRONG
    )
    return [(one.status, one.finding.kind) for one in pipelines_recover(made)]


REFUSED = {rank: Failed(type="ValueError", message="one sample", step=0) for rank in (0, 1)}
PROMISED = ErrorContract(promises={"batch": ("ValueError",)})
RIGHT = honest_example("plain")
WRONG = dataclasses.replace(RIGHT, expected=honest_example("sum").expected)
WRONG_OUTPUT = changed(RIGHT, rank=1, output=Structure.of(torch.zeros(6, 3, dtype=torch.float64)))


def test_another_error_than_the_promised_one_is_shown_with_the_line_that_raised_it():
    where = Frame("engine", "/opt/engine/check.py", 7, "check", "raise KeyError(name)")
    raised = {rank: Failed(type="KeyError", message="'w'", step=0, frames=(where,)) for rank in (0, 1)}
    (found,) = _refused(failed=raised, judged_by=answers_are_right)

    assert found.finding.kind == "batch: raised KeyError"
    assert found.finding.message.splitlines()[1:] == [
        "rank 0 raised at",
        "  engine/check.py, line 7, in check",
        "    raise KeyError(name)",
    ]


def _refused(*verdicts, failed=REFUSED, errors=PROMISED, evidence=RIGHT, judged_by=pipelines_recover):
    mistake = Mistake(where="batch", how="scarce")
    case = structs.replace(CASE, program=(Train(batch_size=4, num_microbatches=2, mistake=mistake),))
    found = _aftermath(*(verdicts or (Returned(None), Returned(None))), failed=failed)
    found = dataclasses.replace(found, case=case, errors=errors, evidence=evidence)
    return list(judged_by(found))


def test_a_pipeline_that_goes_on_after_a_refused_batch_is_right():
    assert _refused() == []


def test_a_pipeline_that_was_never_built_did_not_refuse_a_batch():
    unbuilt = {0: Failed(type="RuntimeError", message="locked"), 1: REFUSED[1]}
    shown = tuple(structs.replace(one, steps=()) for one in RIGHT.shown)

    assert _refused(failed=unbuilt, evidence=dataclasses.replace(RIGHT, shown=shown)) == []


def test_a_pipeline_that_is_wrong_after_a_refused_batch_is_wrong():
    (found,) = _refused(evidence=WRONG)

    assert found.status is Status.FAILED
    assert "after in step 0 the batch has only one sample, and an error, the same pipeline is wrong" in (
        found.finding.message
    )


def test_a_pipeline_that_fails_after_a_refused_batch_fails():
    closed = Raised(type="RuntimeError", message="closed")
    (found,) = _refused(closed, closed, failed={}, evidence=None)

    assert (found.status, found.finding.kind) == (Status.ERROR, "after an error: raised RuntimeError")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pipeline_that_waits_for_ever_after_a_refused_batch_hangs(rank):
    ends = [Returned(None), Returned(None)]
    ends[rank] = Stuck(0.3, "every rank waits", doing=f"{RESUMED}, step 0, nothing computed yet")
    (found,) = _refused(*ends, failed={1 - rank: REFUSED[1 - rank]}, evidence=None)

    assert (found.status, found.finding.kind, found.finding.rank) == (
        Status.HUNG,
        "after an error: hang",
        rank,
    )
    assert "an error, the same pipeline waits forever: every rank waits" in found.finding.message


def test_who_raises_when_the_step_runs_again_is_told_before_who_waits_for_him():
    again = Stuck(0.3, "waits", doing=RESUMED)
    (found,) = _refused(again, Raised(type="RuntimeError", message="closed"), failed={}, evidence=None)

    assert found.status is Status.ERROR


def test_a_hang_in_the_step_that_is_refused_is_the_matter_of_others():
    waits = Stuck(0.3, "waits", doing="step 0, nothing computed yet")

    assert _refused(waits, Returned(None), failed={1: REFUSED[1]}, evidence=None) == []


@pytest.mark.parametrize(
    "others",
    [
        {"errors": ErrorContract(), "evidence": WRONG},
        {"failed": {0: REFUSED[0]}, "evidence": WRONG},
        {"evidence": None},
    ],
    ids=["nothing promised", "not on every rank", "somebody waits"],
)
def test_what_was_no_refusal_by_all_is_the_matter_of_others(others):
    assert _refused(**others) == []
