"""Two things at once that are each a subject of their own: a pair of parts, of which any two go together.

A part changes the model or the program. Two that change the program have a program of their own in `_PROGRAMS`; which
two do not go together, and why, is in `APART`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import structs

from pipeconform.case.case import Case, Eval, Load, Optimize, Sgd, Step, Train, Zero
from pipeconform.case.draw.changes import accumulates, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects import (
    accumulate,
    checkpoint,
    evaluation,
    frozen,
    load,
    optimizer,
    tied_stages,
    unused,
    varying,
)
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, ScheduleClaim

__all__ = ["APART", "PAIRS", "PARTS", "Pair", "pairs_in"]

_CLEAR = Zero(set_to_none=True)
PARTS: tuple[Subject, ...] = (
    frozen.FROZEN,
    unused.UNUSED,
    checkpoint.CHECKPOINT,
    tied_stages.TIED_STAGES,
    accumulate.ACCUMULATE,
    varying.VARYING,
    optimizer.OPTIMIZER,
    load.LOAD,
    evaluation.EVAL,
)
"""The subjects of which two are drawn together."""

APART: Mapping[frozenset[Focus], str] = MappingProxyType(
    {
        frozenset({Focus.VARYING, Focus.EVAL}): "LIF-1 draws evaluations of another size than training steps",
    }
)
"""Two parts that are not drawn together, and why."""


def _has(*kinds: type[Step]) -> Callable[[Case], bool]:
    return lambda case: all(any(isinstance(step, kind) for step in case.program) for kind in kinds)


_FOUND: Mapping[Focus, Callable[[Case], bool]] = MappingProxyType(
    {
        Focus.ACCUMULATE: accumulates,
        Focus.EVAL: _has(Train, Eval),
        Focus.OPTIMIZER: lambda case: _has(Optimize)(case) and not _clips(case),
    }
)
"""Parts that are found in more cases than those of their subject, which leave each other out, or in fewer."""


def _clips(case: Case) -> bool:
    return isinstance(case.optimizer, Sgd) and case.optimizer.clip is not None


def _other(d: Drawing, draft: Draft) -> Train:
    size = varying.other_size(d, draft)
    return structs.replace(draft.train, batch_size=size[0] * size[1], num_microbatches=size[0])


def _programs(d: Drawing, draft: Draft, foci: frozenset[Focus]) -> list[tuple[Step, ...]]:
    t, e, z, o = draft.train, draft.evaluate, _CLEAR, Optimize()
    if foci == {Focus.ACCUMULATE, Focus.VARYING}:
        other = _other(d, draft)
        return [(t, other), (t, other, z, t)]
    if foci == {Focus.VARYING, Focus.OPTIMIZER}:
        return [(t, o, z, _other(d, draft), o, z, t)]
    if foci == {Focus.VARYING, Focus.LOAD}:
        return [(t, Load(), z, _other(d, draft))]
    programs: dict[frozenset[Focus], list[tuple[Step, ...]]] = {
        frozenset({Focus.ACCUMULATE, Focus.OPTIMIZER}): [(t, t, o, z, t)],
        frozenset({Focus.ACCUMULATE, Focus.LOAD}): [(t, Load(), t), (t, Load(), t, z, t)],
        frozenset({Focus.ACCUMULATE, Focus.EVAL}): [(t, e, t)],
        frozenset({Focus.OPTIMIZER, Focus.LOAD}): [(Load(), t, o, z, t), (t, o, z, Load(), t, o, z, t)],
        frozenset({Focus.OPTIMIZER, Focus.EVAL}): [(t, e, o, z, t, o)],
        frozenset({Focus.LOAD, Focus.EVAL}): [(t, Load(), e, z, t), (Load(), e, t)],
    }
    return programs[foci]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two parts."""

    first: Subject
    second: Subject

    @property
    def name(self) -> str:
        """Such as ``accumulation, optimizer steps``."""
        return f"{self.first.focus}, {self.second.focus}"

    @property
    def foci(self) -> frozenset[Focus]:
        """Both names."""
        return frozenset({self.first.focus, self.second.focus})

    def is_in(self, case: Case) -> bool:
        """Whether a case has both."""
        return all(_FOUND.get(one.focus, one.is_in)(case) for one in (self.first, self.second))

    def controls_of(self, case: Case) -> Iterator[tuple[str, Case]]:
        """The case without the one, and without the other."""
        for one in (self.second, self.first):
            assert one.without is not None, "every part has a control"
            yield one.control, one.without(case)

    @property
    def subject(self) -> Subject:
        """What is drawn of it."""
        first, second = self.first, self.second
        return Subject(
            focus=Focus.TOGETHER,
            needs=first.needs | second.needs,
            squares=first.squares or second.squares,
            trains=True,
            claimed=self._claimed,
            least_stages=max(first.least_stages, second.least_stages),
            several_microbatches=first.several_microbatches or second.several_microbatches,
            contents=self._contents,
            program=self._program,
            no_control="a part of the subject for pairs, which has it",
        )

    def _claimed(self, claim: ScheduleClaim, own: Capabilities) -> bool:
        return self.first.claimed(claim, own) and self.second.claimed(claim, own)

    def _contents(self, d: Drawing, draft: Draft) -> Draft:
        for one in (self.first, self.second):
            if one.contents is not None and one.focus is not Focus.EVAL:  # its dropout is another part
                draft = one.contents(d, draft)
        if Focus.OPTIMIZER in self.foci:
            draft = replaced(draft, optimizer=d.pick([Sgd(lr=0.125), Sgd(lr=0.0625, momentum=0.5)]))
        return draft

    def _program(self, d: Drawing, draft: Draft) -> Draft:
        own = [one for one in (self.first, self.second) if one.program is not None]
        if len(own) == 2:
            return replaced(draft, program=d.pick(_programs(d, draft, self.foci)))
        if own and own[0].focus is Focus.OPTIMIZER:
            return replaced(draft, program=(draft.train, Optimize(), _CLEAR, draft.train))
        return own[0].program(d, draft) if own and own[0].program is not None else draft


PAIRS: tuple[Pair, ...] = tuple(
    pair
    for first, second in itertools.combinations(PARTS, 2)
    if (pair := Pair(first=first, second=second)).foci not in APART
)
"""All pairs that go together."""


def pairs_in(case: Case) -> tuple[Pair, ...]:
    """The pairs that a case has."""
    return tuple(pair for pair in PAIRS if pair.is_in(case))


def _controls(case: Case) -> Iterator[tuple[str, Case]]:
    for pair in pairs_in(case):
        yield from pair.controls_of(case)


TOGETHER = Subject(
    focus=Focus.TOGETHER,
    trains=True,
    claimed=lambda claim, own: any(
        pair.first.needs | pair.second.needs <= own.features and pair.subject.claimed(claim, own)
        for pair in PAIRS
    ),
    found=lambda case: bool(pairs_in(case)),
    rarity=3,
    members=tuple(pair.subject for pair in PAIRS),
    controls=_controls,
    control="without one of the two",
)
