"""Wrong plans; shrinks toward one stage too many and the first rank, or toward a forward that a table lacks."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import right
from pipeconform.case.draw.sizes import some_m
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.orders import in_line, ordered
from pipeconform.case.focus import Focus
from pipeconform.case.misplans import PLACED, TABLES, HowPlanned, Misplan, num_surplus
from pipeconform.claims import Feature, MistakeKind


def _drawn(d: Drawing, draft: Draft) -> Draft:
    """Draw a wrong plan, and a training step and a model that fit it."""
    p, v, train, model = d.num_ranks, d.stages_per_rank, draft.train, draft.model
    others = [m for m in dict.fromkeys(some_m(d.claim, p, v)) if m not in (1, train.num_microbatches)]
    hows: list[HowPlanned] = ["remainder", "single"] if d.claim.stages_per_rank == (1,) else ["remainder"]
    hows += ["schedule", "stages"]
    hows += ["microbatches"] if others else []
    hows += ["metadata"] if Feature.DECLARED_BOUNDARIES in d.features else []
    how = d.pick(hows)
    rank: int | None = None
    if how not in ("remainder", "single"):
        rank = d.pick([*range(p), None] if how == "schedule" else range(p))
    misplan = Misplan(how=how, rank=rank, number=d.pick(others) if how == "microbatches" else 0)
    if misplan.number:
        # microbatches have equal sizes under either plan
        train = structs.replace(train, batch_size=misplan.number * train.num_microbatches)
    surplus = model.stages[: num_surplus(misplan, num_ranks=p)]
    return replaced(
        draft,
        model=structs.replace(model, stages=model.stages + surplus),
        world=structs.replace(draft.world, misplan=misplan),
        program=(train,),
    )


def _neighbours(d: Drawing, draft: Draft) -> Draft:
    hows: list[HowPlanned] = ["shape", "dtype"]
    misplan = Misplan(how=d.pick(hows), stage=d.pick(range(d.num_stages - 1)))
    return replaced(draft, world=structs.replace(draft.world, misplan=misplan), program=(draft.train,))


def _table(d: Drawing, draft: Draft) -> Draft:
    """Draw what is wrong in the table of the draft's order."""
    m = draft.train.num_microbatches
    how = d.pick(TABLES)
    placed = how in PLACED
    stage, number = d.pick(range(d.num_stages if placed else 1)), d.pick(range(m if placed else 1))
    misplan = Misplan(how=how, stage=stage, number=number)
    return replaced(draft, world=structs.replace(draft.world, misplan=misplan), program=(draft.train,))


def _has(case: Case, kind: MistakeKind) -> bool:
    return case.world.misplan is not None and case.world.misplan.kind is kind


MISPLANNED = Subject(
    focus=Focus.MISPLANNED,
    mistaken=True,
    claimed=lambda claim, own: own.world == "distributed" and claim.max_ranks > 1,
    found=lambda case: _has(case, MistakeKind.PLAN),
    least_ranks=2,
    program=_drawn,
    without=right,
    control="with the right plan on every rank",
)
NEIGHBOURS = Subject(
    focus=Focus.NEIGHBOURS,
    mistaken=True,
    needs=frozenset({Feature.DECLARED_BOUNDARIES}),
    found=lambda case: _has(case, MistakeKind.NEIGHBOURS),
    least_stages=2,
    program=_neighbours,
    without=right,
    control="with stages that agree about their boundaries",
)
WRONG_TABLE = Subject(
    focus=Focus.WRONG_TABLE,
    mistaken=True,
    needs=frozenset({Feature.TABLES}),
    claimed=in_line,
    found=lambda case: _has(case, MistakeKind.TABLE),
    least_ranks=2,
    several_microbatches=True,
    world=ordered(in_turn=True),
    program=_table,
    without=right,
    control="with a table that can be carried out",
)
