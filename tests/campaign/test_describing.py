"""What becomes of the answers of a process that is asked for a description, and which runner a description gets."""

import dataclasses

import msgspec
import pytest

from pipeconform.adapter import Description
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.campaign.known_answers import KnownAnswers
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.campaign.variants import Runners
from pipeconform.campaign.wrapper_runner import WrapperRunner
from pipeconform.errors import BadAdapterError, ContractError, HarnessError
from pipeconform.execute.described import Described, OfPipeline
from pipeconform.execute.implementation import describe as describe_here
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, VerdictVector
from tests.campaign.answering import Answering
from tests.case.examples import EVERYTHING

FOUND = Description(name="it", version="1", capabilities=dataclasses.replace(EVERYTHING, patience=7.0))


class Oracle:
    """A process that gives one verdict."""

    def __init__(self, verdict):
        self.verdict, self.asked, self.restarts = verdict, [], 0

    def run(self, task, payload, *, time_limit):
        self.asked.append((task, payload, time_limit))
        return VerdictVector((self.verdict,))

    def restart(self):
        self.restarts += 1


def described(verdict):
    pools = Answering()
    pools.oracle = Oracle(verdict)
    found = describe(pools, "it:It", time_limit=5.0)
    return found, pools.oracle


def test_a_description_is_asked_for_by_name_in_a_process_that_is_then_replaced():
    answer = msgspec.msgpack.encode(Described(OfPipeline(FOUND)))
    found, oracle = described(Returned(answer))

    assert found == FOUND
    assert oracle.asked == [("pipeconform.execute.described:answer", b"it:It", 5.0)]
    assert oracle.restarts == 1


@pytest.mark.parametrize(
    ("verdict", "error", "words"),
    [
        (Raised("pipeconform.errors.BadAdapterError", "no class It"), BadAdapterError, "^no class It$"),
        (Raised("pipeconform.errors.ContractError", "run() takes no batch"), ContractError, "^run"),
        (Raised("ValueError", "bad"), BadAdapterError, "'it:It' cannot be described: ValueError: bad"),
        (Died(exit_code=3), BadAdapterError, r"ended the process \(exit code 3\)"),
        (Stuck(5.0, "waits"), BadAdapterError, "did not end"),
        (Died(lost="host b is gone"), HarnessError, "describing 'it:It' failed"),
        (Returned(b"\xc1"), BadAdapterError, "cannot be described: pipeconform.NotAnAnswer"),
    ],
)
def test_anything_else_is_told_as_whose_fault_it_is(verdict, error, words):
    with pytest.raises(error, match=words) as caught:
        described(verdict)
    assert type(caught.value) is error


def test_a_runner_has_what_it_is_given_and_its_processes_the_patience_that_is_claimed():
    pools, known = Answering(), KnownAnswers()
    runner = runner_of(
        FOUND, implementation="it:It", pools=pools, known_answers=known, time_limit=9.0, coverage="here"
    )

    assert isinstance(runner, PipelineRunner)
    assert pools.idle_limit == 7.0
    executor = runner.executor
    assert (executor.implementation, executor.description, executor.pools) == ("it:It", FOUND, pools)
    assert (executor.time_limit, executor.coverage) == (9.0, "here")
    assert executor.known_answers is known
    assert runner_of(FOUND, implementation="it:It", pools=pools).executor.known_answers is not known


def test_a_wrapper_has_a_runner_of_its_own():
    pools, found = Answering(), describe_here("reference-wrapper")
    patient = dataclasses.replace(found, claims=dataclasses.replace(found.claims, patience=8.0))
    runner = runner_of(patient, implementation="it:It", pools=pools, time_limit=9.0, coverage="here")

    assert isinstance(runner, WrapperRunner)
    assert pools.idle_limit == 8.0
    assert (runner.time_limit, runner.coverage, runner.description) == (9.0, "here", patient)
    assert runner.title == f"{found.name} {found.version}"


def test_a_variant_starts_when_it_is_first_used_and_once():
    started = []

    def start(name):
        started.append(name)
        return f"runner of {name}"

    runners = Runners("runner", names=("a", "b"), start=start)

    assert ("a" in runners, "c" in runners, list(runners), len(runners)) == (
        True,
        False,
        ["default", "a", "b"],
        3,
    )
    assert started == []
    assert [runners["b"], runners["b"], runners["default"]] == ["runner of b", "runner of b", "runner"]
    assert started == ["b"]
    assert list(runners.started) == ["default", "b"]
    with pytest.raises(KeyError):
        runners["c"]
