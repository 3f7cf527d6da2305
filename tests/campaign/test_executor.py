"""The oracle answers once for executions that ask the same of it."""

from __future__ import annotations

from msgspec import structs

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import ORACLE_TASK, Executor
from pipeconform.case.case import Case
from tests.case.examples import small_case

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
