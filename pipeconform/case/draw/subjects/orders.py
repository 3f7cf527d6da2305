"""Steps in another order than the schedule's: computations in an order of the user's own, and receives posted late."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from pipeconform.case.case import World
from pipeconform.case.draw.changes import changed_world
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import MOST_STAGES, draw_size, some_m
from pipeconform.case.draw.subject import Size, Subject
from pipeconform.case.draw.worlds import alone, bystanding
from pipeconform.case.focus import Focus
from pipeconform.case.orders import Order
from pipeconform.claims import Capabilities, Feature, Placement, ScheduleClaim

_SEEDS = range(64)
"""As few as a case's own: Hypothesis draws from longer tables by numbers that it finds in loaded modules."""


def in_line(claim: ScheduleClaim, own: Capabilities) -> bool:
    """Whether every stage is on one rank."""
    return claim.placement in (Placement.LOOP, Placement.V)


def _long(d: Drawing) -> Size:
    """More microbatches than ranks where the schedule takes that many."""
    p, v, m = draw_size(d, ORDERS)
    return _with_many(d, p, v) or (p, v, m)


def _crossing(d: Drawing) -> Size:
    """Several stages per rank and a long step, where the schedule takes them: only then can messages cross."""
    p, v, m = draw_size(d, LATE_RECEIVES)
    further = v == 1 and 2 in d.claim.stages_per_rank and 2 * p <= MOST_STAGES
    return (further and _with_many(d, p, 2)) or _with_many(d, p, v) or (p, v, m)


def _with_many(d: Drawing, p: int, v: int) -> Size | None:
    many = [m for m in some_m(d.claim, p, v) if m > p]
    return (p, v, d.pick(many)) if many else None


def ordered(*, in_turn: bool) -> Callable[[Drawing], World]:
    """A world with an order of the user's own."""

    def world(d: Drawing) -> World:
        order = Order(
            seed=d.pick(_SEEDS),
            in_turn=in_turn,
            placement="v" if d.claim.placement is Placement.V else "loop",
            splits=d.claim.split_backward and d.claim.split_weights == "all",
        )
        return structs.replace(bystanding(d), order=order)

    return world


ORDERS = Subject(
    focus=Focus.ORDERS,
    needs=frozenset({Feature.TABLES}),
    trains=True,
    claimed=in_line,
    found=lambda case: case.world.order is not None and case.world.order.in_turn and not case.is_mistaken,
    rarity=2,
    least_ranks=2,
    several_microbatches=True,
    world=ordered(in_turn=True),
    without=lambda case: changed_world(case, order=None),
    control="with the schedule's own order",
)

ANY_ORDERS = Subject(
    focus=Focus.ANY_ORDERS,
    needs=frozenset({Feature.TABLES}),
    trains=True,
    claimed=in_line,
    found=lambda case: case.world.order is not None and not case.world.order.in_turn,
    rarity=2,
    least_ranks=2,
    size=_long,
    world=ordered(in_turn=False),
    without=lambda case: changed_world(case, order=None),
    control="with the schedule's own order",
)


LATE_RECEIVES = Subject(
    focus=Focus.LATE_RECEIVES,
    needs=frozenset({Feature.LATE_RECEIVES}),
    trains=True,
    found=lambda case: case.world.late_receives,
    rarity=2,
    least_ranks=2,
    size=_crossing,
    world=lambda d: structs.replace(alone(d), late_receives=True),
    without=lambda case: changed_world(case, late_receives=False),
    control="with receives posted early",
)
