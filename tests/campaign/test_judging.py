"""Where an error on one rank is enough of a refusal, and where every rank must raise one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from pipeconform.adapter import Description, ErrorContract, Feature
from pipeconform.campaign import judging
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.case.case import Split, Train, World
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import Mistake
from pipeconform.errors import ContractError
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Status
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import Failed, Observation, Structure
from pipeconform.oracle.full_model import Question
from pipeconform.ranks.frames import Frame
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, Verdict, VerdictVector
from pipeconform.spec import requirement
from tests.campaign.answering import Answering, honest_ranks
from tests.case.examples import EVERYTHING, small_case, with_model
from tests.judge.honest import CASES

OWN = Raised("ValueError", "a batch of 3 cannot be split into 2 microbatches")
ECHO = Raised("RuntimeError", "Connection closed by peer [127.0.0.1]:1")
WAITS = Stuck(2.0, "no rank used CPU time for 2 s")
RETURNED = Returned(None)
PLAIN = small_case()
UNEVEN = small_case(program=(Train(batch_size=3, num_microbatches=2),))
WORLD = World(size=3, pipeline_ranks=(0, 1, 2), placement="loop")
PLACED = Raised("ValueError", "LoopedBFS places its stages on ranks (0, 1, 0, 1), not (0, 1, 1, 0)")
UNCLEAR = Raised("RuntimeError", "can't allocate memory")


def _judged(identifier, case, *verdicts: Verdict, shown: tuple[Observation, ...] = ()) -> list[str]:
    execution = Execution(case=case, verdicts=VerdictVector(verdicts), shown=shown)
    claims = replace(EVERYTHING, features=EVERYTHING.features - {Feature.UNEVEN_BATCHES})
    executor = Executor(
        implementation="nobody's",
        description=Description(name="it", version="0", capabilities=claims),
        pools=Answering(),
    )
    outcomes = judge(requirement(identifier), execution, executor)
    return [f"{outcome.status}: {outcome.finding.kind}" for outcome in outcomes]


@pytest.mark.parametrize(
    ("verdicts", "refused_alike"),
    [
        ((OWN, OWN), True),
        ((OWN, ECHO), False),
        ((OWN, WAITS), False),
        ((ECHO, OWN), False),
    ],
)
def test_an_uneven_batch_is_refused_where_that_is_noticed_and_should_be_on_every_rank(
    verdicts, refused_alike
):
    """FWD-2, FWD-24"""
    assert _judged("FWD-2", UNEVEN, *verdicts) == []
    assert _judged("FWD-24", UNEVEN, *verdicts) == (
        [] if refused_alike else ["error: refused on some ranks only"]
    )


def test_outputs_that_come_back_are_no_refusal():
    """FWD-2: the last stage is on rank 1."""
    (found,) = _judged("FWD-2", UNEVEN, OWN, Returned(b""))

    assert found.startswith("error: raised ValueError")
    assert _judged("FWD-2", UNEVEN, Returned(b""), OWN) == []


def test_nobody_refuses_where_all_lost_a_connection_or_a_process_died():
    """FWD-2"""
    assert [one.partition(":")[0] for one in _judged("FWD-2", UNEVEN, ECHO, ECHO)] == ["error"]
    assert _judged("FWD-2", UNEVEN, Died(signal="SIGABRT"), OWN) == ["crashed: died: SIGABRT"]


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ((PLACED, PLACED, PLACED), []),
        ((PLACED, WAITS, PLACED), []),
        ((PLACED, Died(signal="SIGABRT"), PLACED), []),
        ((PLACED, Returned(b""), PLACED), []),
        ((PLACED, PLACED, UNCLEAR), ["failed: unclear refusal"]),
        ((PLACED, PLACED, ECHO), ["error: refused on some ranks only"]),
        ((PLACED, PLACED, WAITS), ["hung: hang"]),
        ((PLACED, PLACED, Returned(b"")), ["failed: another placement accepted"]),
        ((Died(signal="SIGABRT"), WAITS, PLACED), ["crashed: died: SIGABRT"]),
        ((WAITS, WAITS, WAITS), ["hung: hang"]),
    ],
)
def test_every_rank_that_can_know_refuses_misplaced_stages(verdicts, found):
    """ERR-16: a loop and a V give the middle one of three ranks the same two stages."""
    model = small_case().model
    six = structs.replace(model, stages=model.stages * 3)
    case = small_case(schedule="V", stages_per_rank=2, world=WORLD, model=six)

    assert _judged("ERR-16", case, *verdicts) == found


COMPILED = CASES["compiled"]
COMPILER = Raised("RuntimeError", "stages compiled by torch.compile are not supported")


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ((COMPILER, COMPILER), []),
        ((COMPILER, OWN), []),
        ((COMPILER, ECHO), []),
        ((COMPILER, WAITS), []),
        ((OWN, OWN), ["failed: compilation not named"]),
        ((COMPILER, Returned(b"")), ["error"]),
    ],
)
def test_compiled_stages_may_be_refused_by_name(verdicts, found):
    """FWD-20: a rank looks at its own stages only, so that others lose their connection, or wait."""
    told = _judged("FWD-20", COMPILED, *verdicts)

    assert told == found or [one.partition(":")[0] for one in told] == found


@pytest.mark.parametrize(("second", "tolerated"), [(OWN, True), (WAITS, False), (ECHO, False)])
def test_what_may_be_refused_is_refused_on_every_rank(second, tolerated):
    """TRC-4: every rank sees the whole model."""
    case = with_model(PLAIN, split=Split(by="points", wrong="unknown"))

    assert (_judged("TRC-4", case, OWN, second) == []) is tolerated


def test_what_is_claimed_and_nothing_special_may_not_be_refused():
    """FWD-2 tolerates errors about uneven batches only."""
    assert [one.partition(":")[0] for one in _judged("FWD-2", PLAIN, OWN, OWN)] == ["error"]


BEYOND = small_case(schedule="V")
"""V is claimed with two stages per rank."""


@pytest.mark.parametrize(
    ("case", "outside"),
    [(BEYOND, True), (small_case(schedule="unheard of"), True), (PLAIN, False)],
    ids=["sizes", "schedule", "claimed"],
)
def test_what_is_not_claimed_may_be_refused_by_errors_or_by_saying_so(case, outside):
    edge = next(name for name, one in JUDGEMENTS.items() if Focus.EDGE in one.draws)
    refused = tuple(Observation(rank=r, pipeline_rank=r, unsupported="no such size") for r in range(2))
    half = (refused[0], Observation(rank=1, pipeline_rank=1))

    assert (_judged(edge, case, OWN, OWN) == []) is outside
    assert (_judged(edge, case, RETURNED, RETURNED, shown=refused) == []) is outside
    assert _judged(edge, case, RETURNED, RETURNED, shown=half) == ["error: refused: no such size"]


def test_a_placement_that_is_not_supported_is_refused():
    """ERR-16"""
    model = small_case().model
    case = small_case(
        schedule="V",
        stages_per_rank=2,
        world=World(size=2, pipeline_ranks=(0, 1), placement="loop"),
        model=structs.replace(model, stages=model.stages * 2),
    )
    shown = tuple(Observation(rank=r, pipeline_rank=r, unsupported="no loop") for r in range(2))

    assert _judged("ERR-16", case, Returned(b""), Returned(b""), shown=shown) == []


# ------------------------------------------------------------------------------------ with ranks that answer


def _runner(ranks=honest_ranks, *, implementation="it:It", errors=None, **claims) -> PipelineRunner:
    capabilities = replace(EVERYTHING, **claims)
    description = Description(
        name="it", version="1", capabilities=capabilities, errors=errors or ErrorContract()
    )
    pools = Answering(ranks)
    return PipelineRunner(Executor(implementation=implementation, description=description, pools=pools))


def _found(runner, identifier, case, **how):
    """The kinds of an execution's findings with their places, and what was judged."""
    row = requirement(identifier)
    execution = runner.execute(case, (row,))
    judged = runner.judged(row, case, execution, **how)
    return [(one.status, one.finding.kind, one.finding.rank) for one in judged.outcomes], judged


def _spoilt(spoil, *, rank=1):
    """Ranks that are right but for one."""

    def ranks(job):
        shown = list(honest_ranks(job))
        shown[rank] = spoil(shown[rank])
        return shown

    return ranks


def _steps(one, **fields):
    return structs.replace(one, steps=tuple(structs.replace(step, **fields) for step in one.steps))


def test_right_ranks_are_judged_right_and_what_was_compared_is_counted():
    found, judged = _found(_runner(), "TRN-1", PLAIN)

    assert (found, judged.compared, judged.unclaimed) == ([], 8, frozenset())


def test_a_wrong_value_is_a_failure_with_the_verdicts_of_all_ranks():
    runner = _runner(_spoilt(lambda one: _steps(one, gradients={})))
    found, judged = _found(runner, "TRN-1", PLAIN)

    assert found[0][0] is Status.FAILED
    assert judged.outcomes[0].verdicts == "rank 0  returned\nrank 1  returned"
    assert judged.outcomes[0].timeline is None


def test_where_the_order_is_watched_a_finding_has_the_timeline_of_its_step():
    def forgetful(one):
        steps = tuple(structs.replace(step, events=step.events[:-1]) for step in one.steps[:1])
        return structs.replace(one, steps=(*steps, *one.steps[1:]))

    _, judged = _found(_runner(_spoilt(forgetful)), "SPL-2", PLAIN)
    timelines = [one.timeline for one in judged.outcomes if one.finding.step is not None]

    assert timelines
    assert all(len(one) == 2 and all(one) for one in timelines)
    whole = timelines[0][0]
    assert [one[:2] for one in whole[:2]] == ["0F", "0F"]


def test_the_first_action_that_departs_is_marked_on_its_rank():
    def hasty(one):
        first, *others = one.steps
        events = (first.events[0], *first.events[2:], first.events[1])
        return structs.replace(one, steps=(structs.replace(first, events=events), *others))

    for rank in (0, 1):
        _, judged = _found(_runner(_spoilt(hasty, rank=rank)), "SCH-2", PLAIN)
        marked = [one for one in judged.outcomes if one.first_wrong is not None]

        assert marked
        assert {one.first_wrong[0] for one in marked} == {rank}
        assert all(one.first_wrong[1] == one.finding.position for one in marked)


@pytest.mark.parametrize(
    ("place", "marked"),
    [
        ({"rank": 1, "position": 2}, (1, 2)),
        ({"rank": 1}, None),
        ({"position": 2}, None),
        ({}, None),
    ],
)
def test_an_action_is_marked_only_if_its_rank_and_its_position_are_known(monkeypatch, place, marked):
    found = Finding(kind="order", message="wrong", step=0, **place)
    judgement = replace(JUDGEMENTS["SCH-2"], judge=lambda evidence: iter([found]))
    monkeypatch.setattr(judging, "JUDGEMENTS", {**JUDGEMENTS, "SCH-2": judgement})
    (outcome,) = _found(_runner(), "SCH-2", PLAIN)[1].outcomes

    assert outcome.first_wrong == marked
    assert len(outcome.timeline) == 2


def test_what_microbatches_that_are_copied_explain_is_no_violation():
    """Kernels may round otherwise where a microbatch is a view; the engine may copy it."""
    runner = _runner()
    asked = []

    def copied(question):
        asked.append(msgspec.msgpack.decode(question, type=Question).copied)

    wrong = _runner(_spoilt(_other_output))
    found, _ = _found(wrong, "FWD-1", PLAIN)
    for question in wrong.pools.questions:
        copied(question)
    assert found[0][1].startswith("output")
    assert True in asked
    assert _found(runner, "FWD-1", PLAIN)[0] == []
    assert not any(msgspec.msgpack.decode(one, type=Question).copied for one in runner.pools.questions)


def _other_output(one):
    def moved(step):
        if step.output is None:
            return step
        tensor = step.output.leaves()[0].tensor() + 1
        return structs.replace(step, output=Structure.of(tensor))

    return structs.replace(one, steps=tuple(map(moved, one.steps)))


def test_a_feature_that_is_shown_unclaimed_is_named():
    runner = _runner(features=EVERYTHING.features - {Feature.STATE})

    assert _found(runner, "FWD-1", PLAIN)[1].unclaimed == {Feature.STATE.value}


def test_a_case_without_what_the_requirement_is_about_counts_nothing():
    alone = small_case(
        model=structs.replace(PLAIN.model, stages=PLAIN.model.stages[:1]),
        world=World(size=1, pipeline_ranks=(0,)),
    )

    assert _found(_runner(), "FWD-3", alone)[1].compared == 0
    assert _found(_runner(), "FWD-3", PLAIN)[1].compared > 0


@pytest.mark.parametrize("anew", [True, False])
def test_determinism_is_judged_by_executing_again(anew):
    runner = _runner()
    row = requirement("LIF-5")
    execution = runner.execute(PLAIN, (row,))
    judged = runner.judged(row, PLAIN, execution, anew=anew)

    assert judged.outcomes == ()
    assert runner.pools.done == ["run 2"] * 3 + ["restart 2", "run 2"] * anew
    assert judged.compared == 6 * (1 + anew)
    assert runner.repetitions(row, execution, anew=anew) == 2 + anew
    assert runner.repetitions(requirement("FWD-1"), execution, anew=anew) == 0


@pytest.mark.parametrize(("wrong", "how"), [(3, "in the same processes"), (4, "in new processes")])
def test_an_execution_that_does_not_repeat_is_told_with_how_it_was_executed(wrong, how):
    calls = []

    def ranks(job):
        calls.append(job)
        shown = list(honest_ranks(job))
        if len(calls) == wrong:
            shown[1] = _steps(shown[1], rng_moved=True)
        return shown

    found, _ = _found(_runner(ranks), "LIF-5", PLAIN)

    assert found == [(Status.FAILED, f"not repeated {how}", 1)]


def test_an_execution_that_ends_when_it_is_repeated_is_told_as_it_ended():
    for at in (2, 3, 4):
        calls = []

        def ranks(job, calls=calls, at=at):
            calls.append(job)
            first, second = honest_ranks(job)
            return first, Died(signal="SIGSEGV") if len(calls) == at else second

        found, _ = _found(_runner(ranks), "LIF-5", PLAIN)

        assert found == [(Status.CRASHED, "died: SIGSEGV", 1)]
        assert len(calls) == 4


def test_an_execution_that_ended_at_once_is_not_repeated():
    runner = _runner(lambda job: (Died(signal="SIGSEGV"), *honest_ranks(job)[1:]))
    row = requirement("LIF-5")
    execution = runner.execute(PLAIN, (row,))

    assert [one.status for one in runner.judged(row, PLAIN, execution).outcomes] == [Status.CRASHED]
    assert runner.repetitions(row, execution, anew=True) == 0


def test_a_broken_contract_is_no_verdict():
    broken = Raised("pipeconform.errors.ContractError", "run() returned None")
    runner = _runner(lambda job: (honest_ranks(job)[0], broken))

    with pytest.raises(ContractError, match=r"\(rank 1\): run\(\) returned None"):
        _found(runner, "FWD-1", PLAIN)

    runner = _runner(lambda job: (broken, honest_ranks(job)[1]))
    with pytest.raises(ContractError, match=r"\(rank 0\): run\(\) returned None"):
        _found(runner, "FWD-1", PLAIN)


FRAME = Frame("my_adapter", "/home/my_adapter.py", 7, "run", "raise KeyError(name)")
MINE = Raised("KeyError", "'w'", frames=(FRAME,))


def test_what_the_adapter_itself_raises_is_no_verdict_on_the_engine():
    runner = _runner(lambda job: (honest_ranks(job)[0], MINE), implementation="my_adapter:It")
    with pytest.raises(ContractError, match=r"does not work \(rank 1\)"):
        _found(runner, "FWD-1", PLAIN)

    other = _runner(lambda job: (honest_ranks(job)[0], MINE), implementation="another:It")
    assert _found(other, "FWD-1", PLAIN)[0] == [(Status.ERROR, "raised KeyError: 'w'", 1)]


WRONG = structs.replace(
    PLAIN,
    program=(structs.replace(PLAIN.program[0], mistake=Mistake(where="forward", how="raise", stage=1)),),
)


def _beside_a_mistake(mine, *, without=None):
    """Both ranks fail in the case with the mistake; without it the second one gives `without`, or is right."""

    def ranks(job):
        first, second = honest_ranks(job)
        if not job.case.is_mistaken:
            return first, without or second
        failed = Failed(
            type=mine.type, message=mine.message, step=0, frames=mine.frames, causes=(("KeyError", "'w'"),)
        )
        return tuple(structs.replace(one, steps=(), failed=failed) for one in (first, second))

    return _runner(ranks, implementation="my_adapter:It")


def test_what_the_adapter_raises_beside_a_mistake_may_be_its_answer():
    runner = _beside_a_mistake(MINE)

    assert _found(runner, "ERR-13", WRONG)[0] == []
    assert [job.case.is_mistaken for job in runner.pools.jobs] == [True, False]
    assert runner.pools.jobs[1].case == WRONG.without_mistakes


def test_unless_it_raises_that_without_the_mistake_too():
    with pytest.raises(ContractError, match=r"does not work \(rank 1\)"):
        _found(_beside_a_mistake(MINE, without=MINE), "ERR-13", WRONG)


@pytest.mark.parametrize("returned", [True, False])
def test_beside_a_mistake_the_right_values_are_known_where_every_rank_returned(monkeypatch, returned):
    seen = []
    judgement = replace(JUDGEMENTS["ERR-13"], aftermath=lambda aftermath: seen.append(aftermath) or ())
    monkeypatch.setattr(judging, "JUDGEMENTS", {**JUDGEMENTS, "ERR-13": judgement})
    runner = _runner(lambda job: honest_ranks(job) if returned else (honest_ranks(job)[0], OWN))
    assert _found(runner, "ERR-13", WRONG)[0] == []

    (aftermath,) = seen
    assert aftermath.case == WRONG
    known = aftermath.evidence and aftermath.evidence.case
    assert known == (WRONG.without_mistakes if returned else None)


def test_what_an_engine_raises_beside_a_mistake_is_its_answer_whatever_it_is():
    """And nothing is executed without the mistake."""
    engine = Frame("engine.core", "/site/engine/core.py", 3, "step", "return undefined")
    runner = _beside_a_mistake(Raised("NameError", "name 'undefined'", frames=(engine,)))

    assert all(isinstance(one, tuple) for one in _found(runner, "ERR-13", WRONG)[0])
    assert len(runner.pools.jobs) == 1


def test_an_import_that_fails_only_beside_the_mistake_is_no_answer_either():
    lacking = Raised("ModuleNotFoundError", "No module named 'engine'", frames=(FRAME,))

    def ranks(job):
        first, second = honest_ranks(job)
        return first, lacking if job.case.is_mistaken else second

    runner = _runner(ranks)
    with pytest.raises(ContractError, match=r"does not work \(rank 1\): an import failed"):
        _found(runner, "ERR-13", WRONG)
    assert len(runner.pools.jobs) == 1


def test_a_refusal_that_the_adapter_or_the_machine_caused_is_none():
    """FWD-24"""
    lacking = Raised("ModuleNotFoundError", "No module named 'engine'", frames=(FRAME,))

    with pytest.raises(ContractError, match="an import failed"):
        _judged("FWD-24", UNEVEN, lacking, OWN)


def test_an_import_that_fails_is_no_answer_to_anything():
    lacking = Raised("ModuleNotFoundError", "No module named 'engine'", frames=(FRAME,))

    def ranks(job):
        return honest_ranks(job)[0], lacking

    with pytest.raises(ContractError, match="an import failed"):
        _found(_runner(ranks), "ERR-13", WRONG)


def test_a_mistake_that_is_accepted_is_judged_by_the_model_with_the_mistake():
    runner = _runner()
    found, judged = _found(runner, "ERR-1", _with_mistake("input", "inner"))

    assert found == [(Status.FAILED, "input_shape: accepted", None)]
    assert "the model itself raises" in judged.outcomes[0].finding.message


def _with_mistake(where, how):
    first, *others = PLAIN.program
    return structs.replace(
        PLAIN,
        program=(first, *others[:-1], structs.replace(others[-1], mistake=Mistake(where=where, how=how))),
    )


# ----------------------------------------------------------------------------------------- refused in time


@pytest.mark.parametrize(
    ("verdicts", "outputs_on", "tolerated"),
    [
        ((OWN, OWN), "last_stage", True),
        ((OWN, ECHO), "last_stage", True),
        ((OWN, RETURNED), "last_stage", False),
        ((RETURNED, OWN), "last_stage", True),
        ((RETURNED, OWN), "all", False),
        ((ECHO, ECHO), "last_stage", False),
    ],
)
def test_an_uneven_batch_is_refused_before_outputs_come_back(verdicts, outputs_on, tolerated):
    """FWD-2: a rank that holds outputs must not have returned any."""
    runner = _runner(
        lambda job: [
            one if one is not RETURNED else shown
            for one, shown in zip(verdicts, honest_ranks(job), strict=True)
        ],
        features=EVERYTHING.features - {Feature.UNEVEN_BATCHES},
        outputs_on=outputs_on,
    )
    found, judged = _found(runner, "FWD-2", UNEVEN)

    assert (found == []) is tolerated
    assert (judged.compared > 0) is tolerated
