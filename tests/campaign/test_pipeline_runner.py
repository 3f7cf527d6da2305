"""What a pipeline's runner executes for which requirements; ranks answer what a test says."""

import pytest

from pipeconform.adapter import Description, ErrorContract, MistakeKind
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import requirement
from tests.campaign.answering import Answering
from tests.case.examples import EVERYTHING, small_case

CASE = small_case()


def runner_with(**described):
    description = Description(name="it", version="1", capabilities=EVERYTHING, **described)
    return PipelineRunner(Executor(implementation="it:It", description=description, pools=Answering()))


def observing(*, only=(), never=()):
    """The first requirement that observes all of `only` and nothing of `never`."""
    return next(
        requirement(name)
        for name, one in JUDGEMENTS.items()
        if one.observe >= {*only} and not one.observe & {*never}
    )


PLAIN = requirement("FWD-1")
TIMELINE = observing(only=["timeline"], never=["no outputs", "loneliness", "recovery", "resumption"])
NO_OUTPUTS = observing(only=["no outputs"])


def test_a_runner_is_about_its_implementation():
    runner = runner_with()

    assert (runner.implementation, runner.title, runner.kind) == ("it:It", "it 1", "pipeline")
    assert runner.pools is runner.executor.pools
    assert runner.executions is Execution
    assert not runner.promises
    assert runner_with(errors=ErrorContract(promises={MistakeKind.EXCEPTION: ("E",)})).promises


def test_cases_of_wrappers_are_not_its_own():
    assert runner_with().own(CASE) == CASE
    assert runner_with().own(WrapperCase(module="plain")) is None


def test_requirements_share_an_execution_unless_observing_changes_it():
    changing = [observing(only=[one]) for one in ("loneliness", "recovery", "resumption")]
    groups = runner_with().apart([PLAIN, changing[0], TIMELINE, changing[1], NO_OUTPUTS, changing[2]])

    assert groups == ((PLAIN, TIMELINE, NO_OUTPUTS), (changing[0],), (changing[1],), (changing[2],))
    assert runner_with().apart([]) == ()


@pytest.mark.parametrize("hung", [True, False])
def test_an_execution_records_what_all_its_requirements_observe(hung):
    runner = runner_with()
    runner.execute(CASE, [PLAIN, TIMELINE], hung=hung)
    (job,) = runner.pools.jobs

    assert {*job.observe} == JUDGEMENTS[PLAIN.id].observe | JUDGEMENTS[TIMELINE.id].observe | (
        {"waits"} if hung else set()
    )


def test_outputs_are_left_out_only_where_nobody_compares_them():
    runner = runner_with()
    for rows in ([NO_OUTPUTS], [NO_OUTPUTS, PLAIN], [PLAIN, NO_OUTPUTS], [PLAIN]):
        runner.execute(CASE, rows)

    assert ["no outputs" in job.observe for job in runner.pools.jobs] == [True, False, False, False]
    assert "timeline" in runner.pools.jobs[1].observe


def test_executions_are_kept_by_case_and_by_what_was_observed():
    runner = runner_with()
    keys = {runner.stored_as(CASE, rows) for rows in ([PLAIN], [TIMELINE], [NO_OUTPUTS, PLAIN])}

    assert len(keys) == 3
    assert all(key.endswith(CASE.digest) for key in keys)
    assert runner.stored_as(CASE, [PLAIN, TIMELINE]) == runner.stored_as(CASE, [TIMELINE, PLAIN])


@pytest.mark.parametrize(
    ("status", "kind", "known"),
    [
        (Status.FAILED, "gradient value", True),
        (Status.FAILED, "order", False),
        (Status.ERROR, "gradient value", False),
    ],
)
def test_where_values_are_wrong_another_execution_can_tell_where_they_begin(status, kind, known):
    assert runner_with().can_localise(Outcome(status, Finding(kind=kind, message=""))) is known
