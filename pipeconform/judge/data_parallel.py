"""Replicas of a pipeline, each with its own data.

Every replica is judged like a separate pipeline, with the oracle's mean in place of its gradients; where ranks hold
parts, the oracle's values are cut in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pipeconform.case.case import Optimize, Train
from pipeconform.judge import training
from pipeconform.judge.evidence import Evidence, Finding, Judge, shown_step
from pipeconform.judge.forward import outputs_are_right
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Named, Observation, Reference, Sharding, StepExpected, StepShown

if TYPE_CHECKING:
    from pipeconform.oracle.full_model import Bounds

__all__ = [
    "Shards",
    "cut_alike",
    "first_values",
    "gradients_are_the_mean",
    "hook_is_called",
    "of_each_replica",
    "part_of",
    "replicas_of",
]

Shards = dict[int, dict[str, Sharding]]


def replicas_of(evidence: Evidence) -> Iterator[Evidence]:
    """The evidence about each replica, as if it were alone; where stages are cut over ranks, about each part."""
    world = evidence.case.world
    everybody = evidence.shown if world.tensor is None else added_up(evidence)
    for number, ranks in enumerate(world.pipelines):
        d = number % world.num_replicas
        shown = tuple(one for one in everybody if one.rank in ranks)
        yield dataclasses.replace(
            evidence,
            shown=shown,
            expected=_of_replica(evidence.expected, d, shown),
            bounded=functools.cache(functools.partial(_bounded, evidence.bounded, d, shown)),
        )


def _bounded(
    bounded: Callable[[Bounds], Reference], replica: int, shown: tuple[Observation, ...], bounds: Bounds
) -> Reference:
    return _of_replica(bounded(bounds), replica, shown)


def _of_replica(reference: Reference, replica: int, shown: tuple[Observation, ...]) -> Reference:
    steps = reference.steps if replica == 0 else reference.others[replica - 1]
    return Reference(steps=tuple(_cut(step, shown) for step in steps))


def _cut(expected: StepExpected, shown: tuple[Observation, ...]) -> StepExpected:
    """The right values, cut into parts where the ranks hold parts."""
    gradients: Shards = {}
    parameters: Shards = {}
    for one in shown:
        gradients |= one.steps[expected.step].gradient_shards
        parameters |= one.steps[expected.step].parameter_shards
    if not gradients and not parameters:
        return expected
    return structs.replace(
        expected,
        gradients=_parts(expected.gradients, gradients),
        gradient_bounds=_parts(expected.gradient_bounds, gradients),
        parameters=_parts(expected.parameters, parameters),
        parameter_bounds=_parts(expected.parameter_bounds, parameters),
    )


def _parts(values: Mapping[int, Named], shards: Shards) -> dict[int, Named]:
    return {
        s: {name: part_of(array, shards.get(s, {}).get(name)) for name, array in own.items()}
        for s, own in values.items()
    }


def part_of(array: Array | None, cut: Sharding | None) -> Array | None:
    """One rank's part of a value that is cut into chunks of equal size, the last ones smaller if need be."""
    if array is None or cut is None or not cut.cuts:
        return array
    part = array.tensor()
    for dim, num, index in cut.cuts:
        if dim >= part.ndim:
            return array
        size = -(-part.shape[dim] // num)
        start = min(index * size, part.shape[dim])
        part = part.narrow(dim, start, min(size, part.shape[dim] - start))
    return Array.of(part)


def added_up(evidence: Evidence) -> tuple[Observation, ...]:
    """What the ranks showed, with the sum in place of gradients that are still partial over the parts of a stage."""
    world = evidence.case.world
    found = {one.rank: one for one in evidence.shown}
    for d in range(world.num_replicas):
        for ranks in zip(*world.pipelines[d :: world.num_replicas], strict=True):
            together = [found[rank] for rank in ranks]
            sums = [_sums(steps) for steps in zip(*(one.steps for one in together), strict=True)]
            for one in together:
                steps = tuple(
                    structs.replace(step, gradients=_replaced(step.gradients, own))
                    for step, own in zip(one.steps, sums, strict=True)
                )
                found[one.rank] = structs.replace(one, steps=steps)
    return tuple(found[one.rank] for one in evidence.shown)


def _sums(steps: Sequence[StepShown]) -> dict[tuple[int, str], Array]:
    """The sums, by stage and name, of the gradients that all of these ranks hold as terms of a sum."""
    found: dict[tuple[int, str], Array] = {}
    for s, cuts in steps[0].gradient_shards.items():
        for name in cuts:
            held = [step.gradient_shards.get(s, {}).get(name) for step in steps]
            terms = [step.gradients.get(s, {}).get(name) for step in steps]
            if all(one is not None and one.partial for one in held):
                values = [term.tensor() for term in terms if term is not None]
                if len(values) == len(terms) and len({value.shape for value in values}) == 1:
                    found[s, name] = Array.of(functools.reduce(operator.add, values))
    return found


def _replaced(gradients: dict[int, Named], sums: Mapping[tuple[int, str], Array]) -> dict[int, Named]:
    return {
        s: {name: sums.get((s, name), array) for name, array in own.items()} for s, own in gradients.items()
    }


def of_each_replica(*judges: Judge) -> Judge:
    """A judge that applies all of `judges` to every replica."""

    def each(evidence: Evidence) -> Iterator[Finding]:
        for one in replicas_of(evidence):
            for judge in judges:
                yield from judge(one)

    return each


def _alike(evidence: Evidence) -> Iterator[Finding]:
    """Replicas have the same gradients and parameters, bit for bit, after every step that changes them."""
    replicas = list(replicas_of(evidence))
    for expected in evidence.runs((Train, Optimize)):
        for s in range(evidence.case.num_stages):
            owners = [one for replica in replicas for one in replica.owners(s)]
            steps = [shown_step(one, expected.step) for one in owners]
            for what in ("gradients", "parameters"):
                if any(s in step.gradient_shards or s in step.parameter_shards for step in steps):
                    continue  # they hold different parts
                held = [getattr(step, what).get(s, {}) for step in steps]
                evidence.compared(len(held[0]) if len(replicas) > 1 else 0)
                name = next((n for n in held[0] if len({own.get(n) for own in held}) > 1), None)
                if name is not None:
                    text = (
                        f"the {what[:-1]} of {name} in stage {s} is not the same on all replicas: "
                        + "; ".join(
                            f"rank {one.rank} has {first_values(own.get(name))}"
                            for one, own in zip(owners, held, strict=True)
                        )
                    )
                    yield Finding(
                        kind="replicas differ", message=text, step=expected.step, rank=owners[0].rank, stage=s
                    )


def first_values(array: Array | None) -> str:
    """The first values of a tensor, in words."""
    if array is None:
        return "none"
    values: Any = array.tensor().reshape(-1)[:4].tolist()
    return f"{', '.join(f'{value:.6g}' for value in values)}{', …' if array.size > 4 else ''}"


_EVERYTHING = of_each_replica(
    outputs_are_right, training.losses_and_gradients_are_right, training.updates_are_right
)


def gradients_are_the_mean(evidence: Evidence) -> Iterator[Finding]:
    """Every replica has its own values, and all have the same gradients: the mean over all replicas (DPC-1)."""
    yield from _EVERYTHING(evidence)
    yield from _alike(evidence)


def hook_is_called(evidence: Evidence) -> Iterator[Finding]:
    """In every training step the hook is given all gradients of a stage that has any."""
    for expected in evidence.runs(Train):
        for s, gradients in expected.gradients.items():
            num = sum(array.size for array in gradients.values() if array is not None)
            for one in evidence.owners(s):
                given = shown_step(one, expected.step).hooked.get(s, 0)
                evidence.compared()
                if given < num:
                    text = f"the communication hook of stage {s} was given {given or 'none'} of {num} gradient values"
                    yield Finding(
                        kind="hook not called", message=text, step=expected.step, rank=one.rank, stage=s
                    )


def cut_alike(
    rank: int, step: StepShown, s: int, gradients: Named, *, replica: int | None
) -> Iterator[Finding]:
    """A parameter is sharded, this rank has its own replica's shard, and the gradient is cut in the same way."""
    parameters, cuts = step.parameter_shards.get(s, {}), step.gradient_shards.get(s, {})
    for name in step.parameters.get(s, {}):
        held, cut = parameters.get(name), cuts.get(name)
        if held is None or held.dim is None:
            kind, text = "not sharded", f"is whole on rank {rank}"
        elif held.index != replica:
            kind, text = (
                "another shard",
                f"is shard {held.index} on rank {rank}, which is in replica {replica}",
            )
        elif gradients.get(name) is not None and cut != held:
            how = "whole" if cut is None else f"{', '.join(cut.placements)} of {list(cut.shape)}"
            kind = "gradient cut otherwise"
            text = f"is {', '.join(held.placements)} of {list(held.shape)} on rank {rank}, its gradient {how}"
        else:
            continue
        where: dict[str, Any] = {"step": step.step, "rank": rank, "stage": s}
        yield Finding(kind=kind, message=f"parameter {name} of stage {s} {text}", **where)
        return
