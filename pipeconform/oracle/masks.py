"""Which dropout masks belong to which microbatch, from what the ranks recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeconform.case.build.data import make_batch
from pipeconform.case.case import Case, Train
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Forward, Observation, Structure

__all__ = ["masks_of"]

Masks = tuple[tuple[tuple[int, int, int], tuple[Array, ...]], ...]


def masks_of(case: Case, shown: Sequence[Observation]) -> Masks:
    """The masks by (step, stage, microbatch), for the oracle to replay.

    A microbatch is followed from its known inputs through the stages: its forward in stage s received what stage s−1
    gave. Dry runs (same input, but no stage receives the output) and forwards on corrupted inputs are not followed;
    the oracle then draws its own masks, and its values differ. Microbatches that a stage received the same of, as where
    an earlier mask dropped all, are told apart by their order.
    """
    if not case.draws_masks:
        return ()
    found = []
    for index, step in enumerate(case.program):
        if not isinstance(step, Train):
            continue
        forwards = [f for one in shown if one.steps for f in one.steps[index].forwards]
        inputs = [tuple(map(Structure.of, micro.args)) for micro in make_batch(case, index).microbatches]
        for s, k, chosen in _followed(forwards, inputs, num_stages=case.num_stages):
            if chosen.masks:
                found.append(((index, s, k), chosen.masks))
    return tuple(found)


def _followed(
    forwards: Sequence[Forward], inputs: Sequence[tuple[Structure, ...]], *, num_stages: int
) -> Iterator[tuple[int, int, Forward]]:
    """Stages, microbatches and their forwards, stage by stage, as far as microbatches can be followed."""
    arrived = dict(enumerate(inputs))
    for s in range(num_stages):
        received = {f.inputs for f in forwards if f.stage == s + 1}
        alike: dict[tuple[Structure, ...], list[int]] = {}
        for k in sorted(arrived):
            alike.setdefault(arrived[k], []).append(k)
        arrived = {}
        for one, several in alike.items():
            candidates = [f for f in forwards if f.stage == s and f.inputs == one]
            onward = [f for f in candidates if s == num_stages - 1 or _as_inputs(f.output) in received]
            for k, chosen in zip(several, _in_turn(onward, len(several)), strict=False):
                yield s, k, chosen
                arrived[k] = _as_inputs(chosen.output)


def _in_turn(onward: Sequence[Forward], number: int) -> Sequence[Forward]:
    """The forwards of so many microbatches on the same inputs: without what was computed again, or dry runs before."""
    chosen = [f for f in onward if not f.in_backward]
    if len(chosen) < number:
        chosen = list(onward)
    if len(chosen) >= 2 * number:
        # all were computed again before their backward began
        for at in reversed(range(len(chosen))):
            one = chosen[at]
            again = any((one.masks, one.output) == (before.masks, before.output) for before in chosen[:at])
            if again and len(chosen) > number:
                del chosen[at]
    return chosen[-number:]


def _as_inputs(output: Structure) -> tuple[Structure, ...]:
    return output.items if output.kind in ("tuple", "list") else (output,)
