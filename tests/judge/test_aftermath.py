"""Cases with deliberate mistakes, judged from verdicts written by hand."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.adapter import ErrorContract
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.case.mistakes import Mistake
from pipeconform.judge.aftermath import Aftermath, answers_are_right
from pipeconform.judge.outcome import Status
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import RESUMED, WAITS_FOR_OTHERS, Failed
from pipeconform.ranks.frames import Frame
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, VerdictVector
from tests.judge.honest import honest_example

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


REFUSED = {rank: Failed(type="ValueError", message="one sample", step=0) for rank in (0, 1)}
PROMISED = ErrorContract(promises={"batch": ("ValueError",)})
RIGHT = honest_example("plain")
WRONG = dataclasses.replace(RIGHT, expected=honest_example("sum").expected)


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


def test_a_pipeline_that_waits_for_ever_after_a_refused_batch_hangs():
    again = Stuck(0.3, "every rank waits", doing=f"{RESUMED}, step 0, nothing computed yet")
    (found,) = _refused(Returned(None), again, failed={0: REFUSED[0]}, evidence=None)

    assert (found.status, found.finding.kind, found.finding.rank) == (
        Status.HUNG,
        "after an error: hang",
        1,
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
