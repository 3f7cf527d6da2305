"""The order of steps that a focus asks for."""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from pipeconform.adapter import Feature, placement_of
from pipeconform.case.case import ByHand, Eval, Load, Optimize, Step, Train, Zero
from pipeconform.case.by_hand import UNTIMELY, has_neighbour
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import some_m
from pipeconform.case.focus import Focus

__all__ = ["program_of"]


def program_of(
    d: Drawing, train: Train, evaluate: Eval, *, num_ranks: int, num_stages: int
) -> tuple[Step, ...]:
    """Two or more runs, always; the focus decides what lies between them."""
    if d.focus is Focus.VARYING:
        return _varying(d, train, evaluate, num_ranks=num_ranks, stages_per_rank=num_stages // num_ranks)
    if d.focus is Focus.GUARDED:
        guards: list[Literal["no_grad", "inference_mode"]] = ["no_grad", "inference_mode", "inference_mode"]
        e = structs.replace(evaluate, guard=d.pick(guards))
        t, z = train, Zero(set_to_none=True)
        return d.pick([(t, e), (e, t), (t, e, z, t)]) if d.claim.trains else (e, evaluate)
    if d.focus is Focus.LOAD:
        run: Step = train if d.claim.trains else evaluate
        z = Zero(set_to_none=True)
        return d.pick([(run, Load(), z, run), (Load(), run, z, Load(), run)])
    if not d.claim.trains:
        return (evaluate, evaluate)
    zero = Zero(set_to_none=True)
    clear: tuple[Step, ...] = (zero,)
    match d.focus:
        case Focus.BY_HAND:
            hands = [
                ByHand(mixed=True),
                ByHand(),
                ByHand(mixed=True, late=True),
                ByHand(late=True),
                ByHand(mixed=True, late=True),
            ]
            by_hand = structs.replace(train, by_hand=d.pick(hands))
            return (by_hand, zero, d.pick([train, by_hand]))
        case Focus.DISORDER:
            mistakes: list[Literal["weight_first", "weight_twice", "weight_unknown"]]
            mistakes = ["weight_first", "weight_twice", "weight_unknown"]
            wrong = ByHand(
                mistake=d.pick(mistakes),
                stage=d.pick(range(num_stages)),
                microbatch=d.pick(range(train.num_microbatches)),
            )
            return (structs.replace(train, by_hand=wrong), zero, structs.replace(train, by_hand=wrong))
        case Focus.OUT_OF_ORDER:
            first, second = _out_of_order(d, train, num_ranks=num_ranks, num_stages=num_stages)
            return (first, zero, second)
        case Focus.ACCUMULATE:
            return d.pick(
                [(train, train), (train, Zero(set_to_none=False), train, train), (train, train, zero, train)]
            )
        case Focus.OPTIMIZER:
            length = d.pick([2, 3, 20])
            return ((train, Optimize(), zero) * length)[:-1]
        case Focus.EVAL:
            t, e = train, evaluate
            return d.pick(
                [(t, e), (e, t), (t, e, zero, t), (e, e, t), (e, t, e, zero, t), (t, zero, e, e, t)]
            )
    return (train, *clear, train)


def _out_of_order(d: Drawing, train: Train, *, num_ranks: int, num_stages: int) -> tuple[Train, Train]:
    """Two steps by hand in each of which an operation is called when it is not due, another one in the second."""
    owners = placement_of(d.claim.placement, num_ranks=num_ranks, num_stages=num_stages)
    placed = [min(ranks) for ranks in owners]
    possible = [
        (mistake, stages)
        for mistake in UNTIMELY
        if (stages := [s for s in range(num_stages) if has_neighbour(mistake, stage=s, placed=placed)])
    ]
    number = d.pick(range(len(possible)))

    def wrong(number: int) -> Train:
        mistake, stages = possible[number % len(possible)]
        hand = ByHand(
            whole=True,
            mistake=mistake,
            stage=d.pick(stages),
            microbatch=d.pick(range(train.num_microbatches)),
        )
        return structs.replace(train, by_hand=hand)

    # what is far from the first in the list: few cases then meet all mistakes
    return wrong(number), wrong(number + len(possible) // 2)


def _varying(
    d: Drawing, train: Train, evaluate: Eval, *, num_ranks: int, stages_per_rank: int
) -> tuple[Step, ...]:
    """Steps of two sizes: another m, another size of microbatches, or both, as far as claimed."""
    m = train.num_microbatches
    rows = train.batch_size // m
    sizes: list[tuple[int, int]] = []
    if Feature.VARYING_SHAPES in d.features:
        sizes += [(m, other) for other in (1, 2, 3, 4) if other != rows]
    if Feature.VARYING_MICROBATCHES in d.features:
        sizes += [(k, rows) for k in some_m(d.claim, num_ranks, stages_per_rank) if k != m]
    if len(d.features & {Feature.VARYING_SHAPES, Feature.VARYING_MICROBATCHES}) == 2:
        sizes += [(k, other) for k, _ in sizes if k != m for other in (1, 2, 3) if other != rows]
    count, size = d.pick(sizes or [(m, rows)])
    t = structs.replace(train, batch_size=count * size, num_microbatches=count)
    e = structs.replace(evaluate, batch_size=count * size, num_microbatches=count)
    if not d.claim.trains:
        return (evaluate, e)
    z = Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [(train, z, t), (train, z, t, z, train)]
    if Feature.EVAL in d.features and d.claim.evaluates:
        programs += [(train, e, z, train), (e, train, z, t)]
    return d.pick(programs)
