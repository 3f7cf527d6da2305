"""How the cases of a wrapper are executed and judged; ranks answer what a test says."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from msgspec import structs

from pipeconform.campaign import wrapper_runner as module
from pipeconform.campaign.options import TIME_LIMIT
from pipeconform.campaign.wrapper_runner import WrapperRunner
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import ContractError, HarnessError
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.ranks.frames import Frame
from pipeconform.ranks.verdict import Died, Raised, Returned, VerdictVector
from pipeconform.spec.wrappers import wrapper_requirement
from pipeconform.wrapper import WrapperClaims, WrapperDescription
from pipeconform.wrappers.job import Job
from pipeconform.wrappers.observation import Expected, Failure, Question, Shown
from tests.campaign.answering import Answering
from tests.case.examples import small_case

ROW = wrapper_requirement("DPW-1")
CASE = WrapperCase(module="plain", ranks=2)
SAVED = WrapperCase(module="plain", ranks=2, loaded_by=3)
FAILED = Failure(where="step 0", type="ValueError", message="bad")


def runner_with(ranks, *, oracle=None, **fields):
    pools = Answering(ranks, kind=Job)
    if oracle is not None:
        pools.oracle = oracle
    return WrapperRunner(
        implementation="my_wrapper:It",
        description=WrapperDescription(name="it", version="2", claims=WrapperClaims()),
        pools=pools,
        **fields,
    )


def fine(job):
    return [Shown(rank=rank, checkpoint=b"saved" if rank == 0 else b"") for rank in range(job.case.ranks)]


def test_a_runner_is_about_its_wrapper():
    runner = runner_with(fine)

    assert (runner.title, runner.kind, runner.promises) == ("it 2", "wrapper", False)
    assert runner.own(CASE) is CASE
    assert runner.own(small_case()) is None
    assert runner.apart([ROW, wrapper_requirement("DPW-2")]) == ((ROW, wrapper_requirement("DPW-2")),)
    assert runner.stored_as(CASE, [ROW]) is None
    assert runner.repetitions(ROW, VerdictVector(()), anew=True) == 0
    assert not runner.can_localise(Outcome(Status.FAILED, Finding(kind="gradient differs", message="")))
    assert runner.localised(CASE, []) is None


# ------------------------------------------------------------------------------ executions


def test_a_case_is_run_once_on_its_ranks_with_the_limit_of_the_run():
    runner = runner_with(fine, time_limit=7.0, coverage="folder")
    vector = runner.execute(CASE)

    (job,) = runner.pools.jobs
    assert (job.implementation, job.case, job.checkpoint, job.coverage) == (
        "my_wrapper:It",
        CASE,
        b"",
        "folder",
    )
    assert (runner.pools.done, runner.pools.limits) == (["run 2"], [7.0])
    assert [one.rank for one in vector.values] == [0, 1]


def test_what_one_world_saves_another_loads_and_its_evidence_is_beside_the_second_s():
    runner = runner_with(fine)
    vector = runner.execute(SAVED)

    first, second = runner.pools.jobs
    assert (first.case, first.checkpoint) == (SAVED.saving, b"")
    assert (second.case, second.checkpoint) == (SAVED.loading, b"saved")
    assert runner.pools.done == ["run 2", "run 3"]
    assert [len(one.earlier) for one in vector.values] == [2, 0, 0]
    assert [one.rank for one in vector.values] == [0, 1, 2]


FIRST_WORLDS = {
    "died": lambda job: (Died(signal="SIGKILL"), Shown(rank=1)),
    "raised": lambda job: (Shown(rank=0), Shown(rank=1, failed=FAILED)),
    "refused": lambda job: (Shown(rank=0, unsupported="no checkpoints"), Shown(rank=1)),
}


@pytest.mark.parametrize("ranks", FIRST_WORLDS.values(), ids=FIRST_WORLDS)
def test_a_first_world_that_did_not_come_through_is_the_evidence(ranks):
    runner = runner_with(ranks)
    vector = runner.execute(SAVED)

    assert [job.case for job in runner.pools.jobs] == [SAVED.saving]
    assert len(vector) == 2
    assert all(getattr(one, "value", Shown(rank=0)).earlier == () for one in vector)


def test_a_second_world_that_ends_is_told_as_it_ended():
    def ranks(job):
        return [Died(signal="SIGSEGV"), *fine(job)[1:]] if job.case == SAVED.loading else fine(job)

    vector = runner_with(ranks).execute(SAVED)

    assert vector.first_failure == 0
    assert vector[0].signal == "SIGSEGV"


ENDED = {
    "fine": (fine, False),
    "a failed step": (lambda job: (Shown(rank=0), Shown(rank=1, failed=FAILED)), True),
    "no answer": (lambda job: (b"\xc1", Shown(rank=1)), True),
    "a death": (lambda job: (Died(signal="SIGKILL"), Shown(rank=1)), False),  # the pool forms others itself
}


@pytest.mark.parametrize(("ranks", "anew"), ENDED.values(), ids=ENDED)
def test_processes_in_which_a_step_failed_run_no_other_case(ranks, anew):
    runner = runner_with(ranks)
    runner.execute(CASE)

    assert runner.pools.done == ["run 2", *["restart 2"] * anew]


# ------------------------------------------------------------------------------ judgements


@pytest.fixture
def judging(monkeypatch):
    """Judge what ranks show, by a judgement that finds the findings of these kinds."""

    def judged(ranks, *kinds, judge=None, **fields):
        found = judge or (lambda evidence: (Finding(kind=one, message=f"it {one}") for one in kinds))
        monkeypatch.setattr(module, "WRAPPER_JUDGEMENTS", {ROW.id: SimpleNamespace(judge=found)})
        runner = runner_with(ranks, **fields)
        return runner.judged(ROW, CASE, runner.execute(CASE))

    return judged


def test_ranks_that_did_not_return_are_the_verdict_and_nothing_is_compared(judging):
    def judge(evidence):
        pytest.fail("is not judged")

    found = judging(lambda job: (Died(signal="SIGKILL"), Shown(rank=1)), judge=judge)
    (outcome,) = found.outcomes

    assert (outcome.status, outcome.finding.kind) == (Status.CRASHED, "died: SIGKILL")
    assert outcome.verdicts == "rank 0  died      SIGKILL  <- first failure\nrank 1  returned"
    assert (found.compared, found.worst_ratio) == (0, None)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("gradient differs", Status.FAILED),
        ("raised ValueError", Status.ERROR),
        ("claimed, but refused", Status.ERROR),
    ],
)
def test_a_finding_is_a_wrong_value_an_error_or_a_claim_that_was_refused(judging, kind, status):
    (outcome,) = judging(fine, kind, kind).outcomes

    assert (outcome.status, outcome.finding.kind) == (status, kind)
    assert outcome.verdicts == "rank 0  returned\nrank 1  returned"


def test_what_is_compared_is_counted(judging):
    def judge(evidence):
        evidence.gauge.count(5)
        evidence.gauge.note(0.25)
        return iter(())

    found = judging(fine, judge=judge)
    assert (found.outcomes, found.compared, found.worst_ratio) == ((), 5, 0.25)


OWN = Frame("my_wrapper", "/home/my_wrapper.py", 7, "wrap", "raise KeyError(name)")
ENGINE = Frame("engine.core", "/site/engine/core.py", 3, "reduce", "raise KeyError(name)")


def raising(*frames, rank):
    raised = Raised("KeyError", "'w'", frames=frames)
    failed = structs.replace(FAILED, raised=raised if frames else None)
    return lambda job: [
        Shown(rank=one, failed=failed if one == rank else None) for one in range(job.case.ranks)
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_adapter_itself_raises_is_no_verdict_on_the_wrapper(judging, rank):
    with pytest.raises(ContractError, match=rf"does not work \(rank {rank}\): it raised KeyError: 'w'"):
        judging(raising(OWN, rank=rank), "raised KeyError")


@pytest.mark.parametrize("frames", [(OWN, ENGINE), ()], ids=["by the engine", "of unknown origin"])
def test_what_an_engine_raises_is_a_verdict(judging, frames):
    (outcome,) = judging(raising(*frames, rank=1), "raised KeyError").outcomes
    assert outcome.status is Status.ERROR


def test_a_wrong_value_is_a_verdict_whatever_an_adapter_raised(judging):
    (outcome,) = judging(raising(OWN, rank=0), "gradient differs").outcomes
    assert outcome.status is Status.FAILED


EXPECTED = Expected(initial=({}, {}), parameters=("w",), names=("w",), trained=3, steps=(), after=())


class Oracle:
    """Gives one verdict, and remembers what it was asked."""

    def __init__(self, verdict):
        self.verdict, self.asked = verdict, []

    def run(self, task, payload, *, time_limit):
        self.asked.append((msgspec.msgpack.decode(payload, type=Question), time_limit))
        return VerdictVector((self.verdict,))


def asks(evidence):
    assert evidence.expected() == EXPECTED
    return iter(())


@pytest.mark.parametrize(("limit", "patience"), [(2 * TIME_LIMIT, 2 * TIME_LIMIT), (1.0, TIME_LIMIT)])
def test_the_oracle_is_asked_about_the_case_with_no_less_than_the_usual_patience(judging, limit, patience):
    oracle = Oracle(Returned(msgspec.msgpack.encode(EXPECTED)))
    assert judging(fine, judge=asks, oracle=oracle, time_limit=limit).outcomes == ()

    ((question, given),) = oracle.asked
    assert (question.case, given) == (CASE, patience)


def test_an_oracle_that_fails_is_the_harness_s_failure(judging):
    with pytest.raises(HarnessError, match=rf"(?s)the oracle failed on case {CASE.digest}:.*no memory"):
        judging(fine, judge=asks, oracle=Oracle(Raised("MemoryError", "no memory")))
