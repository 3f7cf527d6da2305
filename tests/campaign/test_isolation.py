"""Engines that are bad guests: the verdict says what happened, the next case is not touched, nothing stays."""

import tempfile
from pathlib import Path

import pytest

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.case.focus import Focus, Limits
from pipeconform.judge.outcome import Status
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.process_tree import children_of
from pipeconform.spec import requirement

PRELOAD = (
    "torch",
    "torch.distributed",
    "pipeconform.execute.worker",
    "pipeconform.oracle.full_model",
    "pipeconform.reference_impl.adapter",
)
NASTY = f"{Path(__file__).with_name('nasty_engines.py')}:"


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """Runs two cases of an engine one after another; in the end no process and no file of any is left."""
    folder, seen = tmp_path_factory.mktemp("guests"), set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        patch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
        with Pools(preload=PRELOAD) as pools:

            def executions(name, drawn_for=(Focus.PLAIN, Focus.PLAIN)):
                reference = NASTY + name
                executor = Executor(
                    implementation=reference,
                    description=describe(pools, reference),
                    pools=pools,
                    time_limit=20.0,
                )
                found = []
                cases = _cases(executor.capabilities, drawn_for)
                executor.restart(cases[0])  # another engine's processes are not these ones' business
                for case in cases:
                    execution = executor.execute(case)
                    asked = "ERR-10" if case.is_mistaken else "TRN-1"
                    found.append((execution, judge(requirement(asked), execution, executor)))
                    seen.update(_family(pools.server.pid))
                return found

            yield executions
    assert [pid for pid in seen if Path(f"/proc/{pid}").exists()] == []
    assert list(folder.iterdir()) == []


def _cases(capabilities, foci):
    limits, found = Limits(capabilities=capabilities, min_ranks=2, max_ranks=2), []
    for focus in foci:
        corpus = Corpus(limits=limits, schedule=capabilities.schedule("1F1B"), focus=focus, seed=0, size=8)
        found.append(next(c for c in drawn(corpus) if c.num_ranks == 2 and c not in found))
    return found


def _family(pid):
    """A fork server and the processes below it; those of other tests' servers are theirs."""
    found, todo = {pid}, [pid]
    while todo:
        children = children_of(todo.pop())
        todo += children - found
        found |= children
    return found


def _statuses(found):
    return [[outcome.status for outcome in outcomes] for _, outcomes in found]


def test_an_engine_that_aborts_is_a_crash_with_its_signal_and_the_next_case_has_other_processes(guests):
    found = guests("Aborts")

    assert _statuses(found) == [[Status.CRASHED]] * 2
    assert all("SIGABRT" in execution.verdicts.describe() for execution, _ in found)


def test_an_engine_that_cannot_be_built_twice_fails_where_it_does_not_say_so(guests):
    assert _statuses(guests("BuiltTwice")) == [[], [Status.ERROR]]


def test_an_engine_that_cannot_be_built_twice_gets_new_processes_where_it_says_so(guests):
    assert _statuses(guests("BuiltOnce")) == [[], []]


def test_a_lock_that_a_dead_engine_holds_ends_with_its_processes(guests):
    assert _statuses(guests("LeavesLock")) == [[Status.CRASHED]] * 2


def test_a_thread_that_sends_for_ever_reaches_no_later_case(guests):
    assert _statuses(guests("SendsForEver")) == [[], []]


@pytest.mark.parametrize("errors", [1, 2])
def test_a_message_in_the_world_that_an_error_left_behind_reaches_no_later_case(guests, errors):
    found = guests("TalksInTheWorld", [Focus.RAISES] * errors + [Focus.PLAIN])

    assert all(execution.failed for execution, _ in found[:-1]), "nobody raised: nothing was left behind"
    assert _statuses(found) == [[]] * (errors + 1)


def test_what_an_error_left_behind_in_a_process_accuses_no_later_case(guests):
    found = guests("Sulks", [Focus.RAISES, Focus.PLAIN])

    assert found[0][0].failed, "nobody raised: nothing was left behind"
    assert _statuses(found)[1] == []


@pytest.mark.parametrize(
    ("engine", "words"),
    [("SendsPickles", "a frame of kind 6"), ("SendsNonsense", "something other than Observation")],
)
def test_what_an_engine_writes_to_the_harness_is_its_own_failure(guests, engine, words):
    found = guests(engine)

    assert _statuses(found) == [[Status.ERROR]] * 2
    assert all(words in execution.verdicts.describe() for execution, _ in found)
    assert not Path(tempfile.gettempdir(), "unpickled").exists()


def test_the_oracle_computes_where_no_judged_code_has_run(guests):
    assert _statuses(guests("SpoilsTheOracle")) == [[], []]
