"""The oracle answers once for executions that ask the same of it."""

from __future__ import annotations

import dataclasses
import os
import signal

import msgspec
import pytest
from msgspec import structs

from pipeconform.adapter import Description
from pipeconform.bounds.gauge import Gauge
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import ORACLE_TASK, Executor
from pipeconform.case.blocks import Compiled, Dropout, Linear
from pipeconform.case.case import Case, World
from pipeconform.case.mistakes import Mistake
from pipeconform.errors import HarnessError, PoolError
from pipeconform.observe.observation import Failed
from pipeconform.oracle.full_model import Question
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck
from tests.campaign.answering import Answering
from tests.case.examples import EVERYTHING, small_case
from tests.judge.honest import honest, masks_for, of_blocks

REFERENCE = "pipeconform.reference_impl.adapter:ReferenceAdapter"


def _executor(pools, monkeypatch) -> tuple[Executor, list[bytes]]:
    """An executor of the reference, and the questions that its oracle gets."""
    executor = Executor(implementation=REFERENCE, description=describe(pools, REFERENCE), pools=pools)
    asked, oracle = [], pools.oracle
    start = oracle.start

    def counted(task: str, question: bytes, **others: object) -> object:
        assert task == ORACLE_TASK
        asked.append(question)
        return start(task, question, **others)

    monkeypatch.setattr(oracle, "start", counted)
    return executor, asked


def _under(schedule: str, case: Case) -> Case:
    return structs.replace(case, schedule=schedule)


def test_the_oracle_is_asked_once_for_executions_that_differ_in_schedule_or_in_what_is_observed(
    pools, monkeypatch
):
    executor, asked = _executor(pools, monkeypatch)
    case = small_case()

    first = executor.execute(_under("GPipe", case))
    again = executor.execute(_under("GPipe", case), observe=("timeline",))
    other = executor.execute(_under("1F1B", case))

    assert len(asked) == 1
    assert first.expected is not None
    assert first.expected == again.expected == other.expected
    assert all(one.verdicts.ok and one.shown[0].steps for one in (first, again, other))


def test_another_seed_is_another_question(pools, monkeypatch):
    executor, asked = _executor(pools, monkeypatch)
    case = _under("GPipe", small_case())

    found = [executor.execute(structs.replace(case, seed=seed)).expected for seed in (1, 2, 1)]

    assert len(asked) == 2
    assert found[0] == found[2] != found[1]


# --------------------------------------------------------------------------------------- without processes

CASE = small_case()
MISTAKEN = structs.replace(
    CASE,
    program=(structs.replace(CASE.program[0], mistake=Mistake(where="forward", how="raise", stage=1)),),
)
DROPOUT = of_blocks(Linear(), Dropout(), program=CASE.program)


def executor_of(pools: Answering, **claims: object) -> Executor:
    capabilities = dataclasses.replace(EVERYTHING, **claims)  # type: ignore[arg-type]
    description = Description(name="it", version="0", capabilities=capabilities)
    return Executor(implementation="it:It", description=description, pools=pools)


def failing(*, earlier: bool = False, lasting: bool = False):
    """Ranks of which the second one fails."""

    def ranks(job):
        failed = Failed(type="ValueError", message="bad", step=0, earlier=earlier)
        first, second = honest(job.case.without_mistakes).shown
        return first, structs.replace(second, steps=(), failed=failed, lasting=lasting)

    return ranks


def test_ranks_and_oracle_are_asked_for_one_case_and_their_answers_stand_side_by_side():
    pools = Answering()
    execution = executor_of(pools).execute(CASE, observe=("traffic", "timeline"))

    assert pools.done == ["run 2"]
    (job,) = pools.jobs
    assert (job.implementation, job.case, job.observe) == ("it:It", CASE, ("timeline", "traffic"))
    assert pools.expected == [False]
    assert execution.shown == honest(CASE).shown
    assert execution.expected == honest(CASE).expected
    assert [(one.value, one.after) for one in execution.verdicts] == [(None, 0.5)] * 2
    assert execution.failed == {}
    assert execution.outcome() is None
    assert execution.seconds > 0


def test_after_one_that_used_up_its_time_cases_get_as_long_as_others_take():
    hanging = structs.replace(CASE, seed=8)
    compiled = structs.replace(of_blocks(Compiled(), program=CASE.program), schedule=CASE.schedule)
    hung = Stuck(seconds=60.0, why="time limit of 60 s")
    pools = Answering(lambda job: (hung, hung) if job.case == hanging else honest(job.case).shown)
    executor = executor_of(pools)
    limits = []
    for case in (hanging, CASE, hanging, compiled, _under("V", CASE)):
        executor.execute(case)
        limits.append(pools.limits[-1])

    assert limits == [60.0, 60.0, 10.0, 60.0, 60.0]


def test_a_question_that_was_answered_is_not_asked_again_and_another_is():
    pools = Answering()
    executor = executor_of(pools)

    for schedule in ("GPipe", "V", "GPipe"):
        executor.execute(structs.replace(CASE, schedule=schedule, stages_per_rank=1))
    assert len(pools.questions) == 1
    executor.execute(structs.replace(CASE, seed=8))
    assert len(pools.questions) == 2


def test_the_oracle_of_a_case_with_masks_is_asked_after_the_ranks():
    masks = masks_for(DROPOUT)
    pools = Answering(lambda job: honest(job.case, masks=masks).shown)
    execution = executor_of(pools).execute(DROPOUT)

    assert execution.expected == honest(DROPOUT, masks=masks).expected
    (question,) = pools.questions
    assert msgspec.msgpack.decode(question, type=Question).masks


def test_without_ranks_the_oracle_is_given_up():
    def none(_):
        raise PoolError("no processes")

    pools = Answering(none)
    with pytest.raises(PoolError):
        executor_of(pools).execute(CASE)
    assert pools.done == ["run 2", "cancel"]
    pools = Answering(none)
    with pytest.raises(PoolError):
        executor_of(pools).execute(DROPOUT)
    assert pools.done == ["run 2"]


def test_an_oracle_that_fails_is_the_harness_s_fault():
    with pytest.raises(HarnessError, match="the oracle failed on case"):
        executor_of(Answering(oracle_fails=True)).execute(CASE)


def test_an_oracle_that_ends_beside_the_ranks_is_asked_once_more(pools, monkeypatch):
    """As where the ranks of a hang are killed, and the device's service breaks for all others."""
    executor, asked = _executor(pools, monkeypatch)
    case, other = small_case(), structs.replace(small_case(), seed=1)
    expected = executor.execute(case).expected
    oracle = pools.oracle
    start, first = oracle.start, oracle._crew.group

    def kills(*given: object, **others: object) -> object:
        monkeypatch.setattr(oracle, "start", start)
        os.kill(first.pids[0], signal.SIGSTOP)
        pending = start(*given, **others)
        os.kill(first.pids[0], signal.SIGKILL)
        return pending

    monkeypatch.setattr(oracle, "start", kills)
    executor.execute(other)

    assert len(asked) == 3
    assert oracle._crew.group is not first
    assert executor.execute(case).expected == expected


def test_what_is_executed_again_needs_no_oracle():
    pools = Answering()
    execution = executor_of(pools).repeat(CASE)

    assert pools.questions == []
    assert (execution.shown, execution.expected) == (honest(CASE).shown, None)
    assert pools.jobs[0].observe == ()


def test_a_rank_that_does_not_answer_leaves_its_verdict_and_nothing_is_shown():
    pools = Answering(lambda job: (honest(job.case).shown[0], Died(signal="SIGKILL")))
    execution = executor_of(pools).execute(CASE)

    assert execution.shown == ()
    assert [type(one) for one in execution.verdicts] == [Returned, Died]
    assert pools.done == ["run 2"]


def test_processes_that_answer_with_something_else_are_replaced():
    pools = Answering(lambda job: (b"\xc1", honest(job.case).shown[1]))
    execution = executor_of(pools).execute(CASE)

    assert pools.done == ["run 2", "restart 2"]
    assert [type(one) for one in execution.verdicts] == [Raised, Returned]


def test_how_ranks_failed_is_kept_of_a_case_with_a_mistake_only():
    mistaken = executor_of(pools := Answering(failing())).execute(MISTAKEN)

    assert {rank: one.type for rank, one in mistaken.failed.items()} == {1: "ValueError"}
    assert pools.expected == [True]
    assert executor_of(Answering(failing())).execute(CASE).failed == {}


@pytest.mark.parametrize("ends", [True, False])
def test_processes_that_lived_through_a_mistake_are_used_for_another_mistake_at_most(ends):
    pools = Answering(failing(), ends_after_errors=ends)
    executor = executor_of(pools)
    for case in (MISTAKEN, MISTAKEN, CASE, CASE):
        executor.execute(case)

    between = [] if ends else ["restart 2"]
    assert pools.done == ["run 2", *between, "run 2", "restart 2", "run 2", "run 2"]


def test_processes_of_another_size_did_not_live_through_the_mistake():
    wide = structs.replace(CASE, world=World(size=3, pipeline_ranks=(0, 1)))
    pools = Answering(lambda job: honest(job.case.without_mistakes).shown)
    executor = executor_of(pools)
    for case in (MISTAKEN, wide, CASE):
        executor.execute(case)

    assert pools.done == ["run 2", "run 3", "restart 2", "run 2"]


def test_what_an_earlier_case_left_behind_is_tried_again_in_new_processes_and_what_lasts_ends_them():
    pools = Answering(failing(earlier=True))
    executor_of(pools).execute(MISTAKEN)
    assert pools.done == ["run 2", "restart 2", "run 2"]

    pools = Answering(failing(lasting=True))
    executor = executor_of(pools)
    executor.execute(MISTAKEN)
    assert pools.done == ["run 2", "restart 2"]
    assert executor.mistaken == set()


def test_who_wants_new_processes_gets_them_for_every_case():
    pools = Answering()
    executor = executor_of(pools, fresh_process_per_build=True)
    for _ in range(2):
        executor.repeat(CASE)

    assert pools.done == ["restart 2", "run 2"] * 2


def test_an_engine_of_one_process_runs_in_a_world_of_one():
    pools = Answering(lambda job: honest(job.case).shown[:1])
    executor = executor_of(pools, world="single_process")
    executor.repeat(CASE)
    executor.restart(CASE)

    assert pools.done == ["run 1", "restart 1"]


def test_evidence_has_the_reference_as_it_was_asked_for():
    pools = Answering()
    executor = executor_of(pools, loss_over="batch")
    execution = executor.execute(CASE)
    gauge = Gauge()
    plain = executor.evidence(execution, thorough=False, gauge=gauge)

    assert (plain.expected, plain.shown, plain.thorough) == (execution.expected, execution.shown, False)
    assert plain.gauge is gauge
    assert plain.expected.steps[0].flow == ()
    assert executor.evidence(execution, flow=True).expected.steps[0].flow
    executor.evidence(execution, copied=True)
    assert plain.bounded("running").steps[0].gradient_bounds
    assert plain.bounded("running") is plain.bounded("running")
    executor.evidence(execution, flow=True).bounded("running")
    asked = [msgspec.msgpack.decode(one, type=Question) for one in pools.questions]
    assert [(one.bounds, one.copied, one.flow) for one in asked] == [
        ("none", False, False),
        ("none", False, True),
        ("none", True, False),
        ("running", False, True),  # with what passes between stages: the same answer serves localising
    ]
    assert {(one.loss_over, one.case.schedule) for one in asked} == {("batch", "")}


def test_of_a_mistake_the_oracle_computes_what_the_model_does_with_it():
    pools = Answering(lambda job: honest(job.case.without_mistakes).shown)
    executor = executor_of(pools)
    execution = executor.execute(MISTAKEN)
    evidence = executor.as_mistaken(execution)

    assert execution.expected is not None
    assert execution.expected.failed is None
    assert evidence.expected.failed is not None
    assert (evidence.case, evidence.shown) == (MISTAKEN, execution.shown)
    assert evidence.bounded("running").failed is not None
