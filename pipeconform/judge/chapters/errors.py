"""The judgements of chapter ERR."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeconform.case.draw.registry import MISTAKEN
from pipeconform.case.focus import Focus
from pipeconform.judge import aftermath as aftermaths
from pipeconform.judge import misplanned, split_backward
from pipeconform.judge.aftermath import Aftermath
from pipeconform.judge.conditions import SEVERAL_RANKS, SEVERAL_STAGES, Condition
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import LONELINESS, Judgement, about
from pipeconform.judge.outcome import Outcome
from pipeconform.observe.observation import Watched

__all__ = ["ERRORS"]


def _unasked(evidence: Evidence) -> Iterator[Finding]:
    raise AssertionError(f"case {evidence.case.digest} has no mistake: its aftermath is nothing to judge")


def _mistaken(
    *foci: Focus,
    aftermath: Callable[[Aftermath], Iterator[Outcome]] = aftermaths.answers_are_right,
    observe: frozenset[Watched] = frozenset(),
    promised: bool = False,
    condition: Condition | None = None,
    nothing: str = "no rank was seen to end",
) -> Judgement:
    return Judgement(
        judge=_unasked,
        about=frozenset(foci),
        among=frozenset(foci),
        aftermath=aftermath,
        trains=True,
        any_schedule=True,
        observe=observe,
        promised=promised,
        condition=condition,
        nothing=nothing,
    )


ERRORS: dict[str, Judgement] = {
    "ERR-1": _mistaken(Focus.WRONG_SHAPE),
    "ERR-2": _mistaken(Focus.WRONG_DTYPE),
    "ERR-3": _mistaken(Focus.CHANGED),
    "ERR-4": _mistaken(Focus.CHANGED_ONCE),
    "ERR-5": _mistaken(Focus.WRONG_VALUES),
    "ERR-6": _mistaken(Focus.WRONG_GRADIENT),
    "ERR-7": _mistaken(Focus.WRONG_BATCH),
    "ERR-8": _mistaken(
        Focus.NEIGHBOURS, aftermath=misplanned.plans_are_refused, observe=LONELINESS, condition=SEVERAL_STAGES
    ),
    "ERR-9": _mistaken(Focus.MISPLANNED, aftermath=misplanned.plans_are_refused, observe=LONELINESS),
    "ERR-10": _mistaken(Focus.RAISES, Focus.HOOK_RAISES),
    "ERR-11": _mistaken(
        Focus.RAISES,
        Focus.WRONG_SHAPE,
        Focus.MISPLANNED,
        aftermath=aftermaths.processes_recover,
        observe=frozenset({"recovery"}),
        nothing="no rank raised an error after which it could recover",
    ),
    "ERR-12": about(
        Focus.OUT_OF_ORDER, judge=split_backward.mistakes_are_refused, trains=True, any_schedule=True
    ),
    "ERR-13": _mistaken(*MISTAKEN, aftermath=aftermaths.nobody_dies),
    "ERR-14": _mistaken(
        Focus.RAISES,
        aftermath=aftermaths.nobody_waits,
        observe=frozenset({"loneliness"}),
        condition=SEVERAL_RANKS,
        nothing="no rank raised an error for which another one could wait",
    ),
    "ERR-15": _mistaken(
        Focus.WRONG_SHAPE,
        Focus.WRONG_DTYPE,
        Focus.WRONG_BATCH,
        aftermath=aftermaths.pipelines_recover,
        observe=frozenset({"resumption"}),
        promised=True,
        nothing="no promised error about a batch was raised on all ranks",
    ),
}
