"""Which dropout masks belong to which microbatch, from what the ranks recorded."""

from __future__ import annotations

from collections.abc import Sequence

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
    the oracle then draws its own masks, and its values differ.
    """
    if not case.draws_masks:
        return ()
    found = []
    for index, step in enumerate(case.program):
        if not isinstance(step, Train):
            continue
        forwards = [f for one in shown if one.steps for f in one.steps[index].forwards]
        for k, micro in enumerate(make_batch(case, index).microbatches):
            inputs = tuple(Structure.of(arg) for arg in micro.args)
            for s, chosen in enumerate(_path(forwards, inputs, case.num_stages)):
                if chosen.masks:
                    found.append(((index, s, k), chosen.masks))
    return tuple(found)


def _path(forwards: Sequence[Forward], inputs: tuple[Structure, ...], num_stages: int) -> list[Forward]:
    """The forwards of one microbatch, stage by stage, as far as they can be followed."""
    path: list[Forward] = []
    for s in range(num_stages):
        candidates = [f for f in forwards if f.stage == s and f.inputs == inputs]
        received = {f.inputs for f in forwards if f.stage == s + 1}
        onward = [f for f in candidates if s == num_stages - 1 or _as_inputs(f.output) in received]
        if not onward:
            break
        path.append(onward[-1])
        inputs = _as_inputs(onward[-1].output)
    return path


def _as_inputs(output: Structure) -> tuple[Structure, ...]:
    return output.items if output.kind in ("tuple", "list") else (output,)
