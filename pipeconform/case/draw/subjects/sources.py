"""Steps that take their microbatches from an iterator, which goes on from step to step, or ends too early."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Eval, Model, Step, Train, Zero
from pipeconform.case.draw.changes import changed_steps, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import Drawn, Moment, is_about, mistaken, right
from pipeconform.case.draw.sizes import other_size
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import Mistake
from pipeconform.claims import Feature, MistakeKind

_NEEDS = frozenset({Feature.BATCH_SOURCES})


def _from_source(d: Drawing, draft: Draft) -> Draft:
    return replaced(
        draft,
        train=structs.replace(draft.train, from_source=True),
        evaluate=structs.replace(draft.evaluate, from_source=True),
    )


def _program(d: Drawing, draft: Draft) -> Draft:
    """Several steps of a kind: a microbatch that one step loses is missing in the next."""
    t, e, zero = draft.train, draft.evaluate, Zero(set_to_none=True)
    if not d.claim.trains:
        return replaced(draft, program=(e, e))
    later = t
    varies = not {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES}.isdisjoint(d.features)
    if varies and d.pick([False, True]):
        count, size = other_size(d, draft)
        later = structs.replace(t, batch_size=count * size, num_microbatches=count)
    programs: list[tuple[Step, ...]] = [(t, zero, later), (t, zero, later, zero, t)]
    if Feature.EVAL in d.features and d.claim.evaluates:
        programs = [(t, e, zero, later), (e, t, e), *programs]
    return replaced(draft, program=d.pick(programs))


def _rows(d: Drawing, batch_size: int) -> int:
    """Sometimes one sample less, if sizes of microbatches may differ: the last one is then shorter."""
    m = d.num_microbatches
    shorter = Feature.UNEVEN_BATCHES in d.features and 1 < m < batch_size
    return batch_size - d.pick([0, 1]) if shorter else batch_size


def _whole(case: Case) -> Case:
    return changed_steps(case, Train, Eval, from_source=False)


def _ends(d: Drawing, model: Model, moment: Moment) -> Drawn:
    missing = d.num_microbatches - 1 if moment.microbatch is None else moment.microbatch
    return Mistake(where="source", how="ends", microbatch=missing), d.pick([False, True])


SOURCES = Subject(
    focus=Focus.SOURCES,
    needs=_NEEDS,
    found=lambda case: any(run.from_source for run in case.runs),
    rarity=2,  # sizes may change, too, and evaluations stand between
    several_microbatches=True,
    batch_size=_rows,
    contents=_from_source,
    program=_program,
    without=_whole,
    control="with whole batches",
)
SOURCE_ENDS = Subject(
    focus=Focus.SOURCE_ENDS,
    mistaken=True,
    needs=_NEEDS,
    found=is_about(MistakeKind.SOURCE),
    contents=_from_source,
    program=mistaken(_ends),
    without=right,
    control="with a source that has all microbatches",
)
