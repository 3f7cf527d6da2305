"""Two subjects in one case: what is drawn of them, whether a case has both, and the case without each.

A part changes the model, the program or the ranks. Two that change the program have a program of their own in
`_programs`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Load, Optimize, Sgd, Step, Train, World, Zero
from pipeconform.case.draw.changes import accumulates, replaced, with_other_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import draw_size, other_size
from pipeconform.case.draw.subject import Draft, Size, Subject, group_of
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, ScheduleClaim

__all__ = ["Pair", "has_part"]


def _has(*kinds: type[Step]) -> Callable[[Case], bool]:
    return lambda case: all(any(isinstance(step, kind) for step in case.program) for kind in kinds)


def _only_steps(case: Case) -> bool:
    """Whether the optimizer does nothing beside stepping, which is a subject of its own."""
    return not isinstance(case.optimizer, Sgd) or not (case.optimizer.clip or case.optimizer.masters)


_FOUND: Mapping[Focus, Callable[[Case], bool]] = MappingProxyType(
    {
        Focus.ACCUMULATE: accumulates,
        Focus.EVAL: _has(Train, Eval),
        Focus.OPTIMIZER: lambda case: _has(Optimize)(case) and _only_steps(case),
        Focus.DROPOUT: lambda case: case.has(blocks.Dropout) and not _has(Eval)(case),
    }
)
"""Parts that are found in more cases than those of their subject, which leave each other out, or in fewer."""


def has_part(part: Subject, case: Case) -> bool:
    """Whether a case has a part; about ranks, only cases of its form may be asked."""
    return _FOUND.get(part.focus, part.is_in)(case)


def _of_other_size(d: Drawing, draft: Draft) -> Train:
    m, rows = other_size(d, draft)
    return structs.replace(draft.train, batch_size=m * rows, num_microbatches=m)


def _programs(d: Drawing, draft: Draft, foci: frozenset[Focus]) -> list[tuple[Step, ...]]:
    t, e, z, o = draft.train, draft.evaluate, Zero(set_to_none=True), Optimize()
    if Focus.VARYING in foci:
        other = _of_other_size(d, draft)
        if Focus.ACCUMULATE in foci:
            return [(t, other), (t, other, z, t)]
        return [(t, o, z, other, o, z, t)] if Focus.OPTIMIZER in foci else [(t, Load(), z, other)]
    programs: dict[frozenset[Focus], list[tuple[Step, ...]]] = {
        frozenset({Focus.ACCUMULATE, Focus.OPTIMIZER}): [(t, t, o, z, t)],
        frozenset({Focus.ACCUMULATE, Focus.LOAD}): [(t, Load(), t), (t, Load(), t, z, t)],
        frozenset({Focus.ACCUMULATE, Focus.EVAL}): [(t, e, t)],
        frozenset({Focus.OPTIMIZER, Focus.LOAD}): [(Load(), t, o, z, t), (t, o, z, Load(), t, o, z, t)],
        # an engine that claims no accumulation may step the optimizer at the end of a training step
        frozenset({Focus.OPTIMIZER, Focus.EVAL}): [
            (t, e, o, z, t, o) if Feature.ACCUMULATION in d.features else (t, o, e, z, t, o)
        ],
        frozenset({Focus.LOAD, Focus.EVAL}): [(t, Load(), e, z, t), (Load(), e, t)],
    }
    return programs[foci]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two parts; the first one may be replicas or stages that are cut over ranks."""

    focus: Focus
    """The subject that draws it."""
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
        return group_of(case) == self.first.group and all(
            has_part(one, case) for one in (self.first, self.second)
        )

    def controls_of(self, case: Case) -> Iterator[tuple[str, Case]]:
        """The case without the one, and without the other."""
        for one in (self.second, self.first):
            assert one.without is not None, "every part has a control"
            yield one.control, one.without(case)

    @functools.cached_property
    def subject(self) -> Subject:
        """What is drawn of it; always the same object."""
        first, second = self.first, self.second
        return Subject(
            focus=self.focus,
            form=first.form,
            needs=first.needs | second.needs,
            inside=first.inside or second.inside,
            squares=first.squares or second.squares,
            trains=True,
            claimed=self._claimed,
            least_stages=max(first.least_stages, second.least_stages),
            several_microbatches=first.several_microbatches or second.several_microbatches,
            # how a whole tensor becomes shards of parts, only the wrapper knows
            most_replicas=1 if Focus.LOAD in self.foci else first.most_replicas,
            widths=second.widths,
            batch_size=second.batch_size,
            dtype=second.dtype,
            size=self._size if Focus.KWARGS in self.foci else None,
            contents=self._contents,
            world=self._world if first.world is not None else None,
            program=self._program,
            no_control="a part of the subject for pairs, which has it",
        )

    def _claimed(self, claim: ScheduleClaim, own: Capabilities) -> bool:
        if Focus.COMPILED in self.foci and claim.split_backward:
            return False  # such a schedule may refuse compiled stages (FWD-20)
        return self.first.claimed(claim, own) and self.second.claimed(claim, own)

    def _size(self, d: Drawing) -> Size:
        # keyword arguments for a rank are those of its stage
        one_each = d.capabilities.kwargs_scope == "rank"
        return draw_size(d, self.subject, one_each=one_each)

    def _world(self, d: Drawing) -> World:
        assert self.first.world is not None
        world = self.first.world(d)
        if world.tensor is not None and Focus.KWARGS in self.foci:
            world = structs.replace(world, tensor=structs.replace(world.tensor, stream="whole"))
        # an engine that believes examples would show nothing else (FWD-32)
        return structs.replace(world, declared="exact") if world.declared else world

    def _contents(self, d: Drawing, draft: Draft) -> Draft:
        # evaluations may add dropout
        parts = [one for one in (self.first, self.second) if one.focus is not Focus.EVAL]
        # the block of hooks on inputs begins a stage, so it comes last
        for one in sorted(parts, key=lambda one: one.focus is Focus.INPUT_HOOKS):
            ambiguous = d.capabilities.kwargs_scope == "rank" and d.stages_per_rank > 1
            if one.contents is not None and not (one.focus is Focus.KWARGS and ambiguous):
                draft = one.contents(d, draft)
        if self.first.form == "replicas":  # masks are recorded of one replica only
            model = with_other_blocks(draft.model, {blocks.Checkpointed: (blocks.Checkpointed(),)})
            # weights tied in replicas are for DPC-5
            draft = replaced(draft, model=structs.replace(model, tied=()))
        if Focus.OPTIMIZER in self.foci:
            draft = replaced(draft, optimizer=d.pick([Sgd(lr=0.125), Sgd(lr=0.0625, momentum=0.5)]))
        return draft

    def _program(self, d: Drawing, draft: Draft) -> Draft:
        if self.first.form != "stages":
            program = self.second.program or self.first.program
            return program(d, draft) if program is not None else draft
        own = [one for one in (self.first, self.second) if one.program is not None]
        if len(own) == 2:
            return replaced(draft, program=d.pick(_programs(d, draft, self.foci)))
        if own and own[0].focus is Focus.VARYING:  # evaluations are another part
            t, z, other = draft.train, Zero(set_to_none=True), _of_other_size(d, draft)
            programs: list[tuple[Step, ...]] = [(t, z, other), (t, z, other, z, t)]
            return replaced(draft, program=d.pick(programs))
        if own and own[0].focus is Focus.OPTIMIZER:
            return replaced(draft, program=(draft.train, Optimize(), Zero(set_to_none=True), draft.train))
        return own[0].program(d, draft) if own and own[0].program is not None else draft
