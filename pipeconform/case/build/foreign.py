"""Wrong values of the right form for everything that a rank gets but does not own.

A rank that computes another rank's part itself, instead of receiving it, thus gets a wrong result. The values are drawn
from the case's seed and the rank's position in the pipeline. They are finite, because an engine may build every stage
and run it to find shapes; the same at every call; and the same on all ranks that own the same stages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Literal

import torch
from msgspec import structs
from torch import Tensor, nn

from pipeconform.adapter import Batch
from pipeconform.case.build import data
from pipeconform.case.build.modules import Intruder, Recorder, StageModule, build_stage, composed
from pipeconform.case.build.whole import WholeModel, build_whole, parts_are_known
from pipeconform.case.case import Case
from pipeconform.case.seeds import seed_of

__all__ = ["annotated_for", "batch_for", "model_for", "stage_for", "state_for", "stranger"]

_BUFFERS_MOVE = 0.5
"""The smallest difference of a floating-point buffer; it is added, so that a variance stays positive."""


def stranger(case: Case, position: int | None) -> Case:
    """The case with the seed for everything that the rank at `position` does not own."""
    return structs.replace(case, seed=seed_of(case.seed, "foreign", position))


def stage_for(case: Case, index: int, *, owned: Collection[int], position: int | None) -> StageModule:
    """Stage `index` as its builder returns it on the rank at `position`."""
    module = build_stage(case, index)
    if index not in owned:
        _estrange([module], _generator(case, position, index))
    return module


def model_for(
    case: Case,
    *,
    owned: Collection[int],
    position: int | None,
    recorder: Recorder | None = None,
    intruder: Intruder | None = None,
) -> nn.Module:
    """The composition of all stages; a shared parameter is right if any of its stages is owned."""
    stages = [stage_for(case, s, owned=owned, position=position) for s in range(case.num_stages)]
    return composed(case, stages, owned=owned, recorder=recorder, intruder=intruder)


def annotated_for(
    case: Case, mark: Callable[[], None] | None = None, *, owned: Collection[int], position: int | None
) -> WholeModel:
    """The whole model for a front end; every value is right if the front end chooses where to cut."""
    model = build_whole(case, mark)
    if parts_are_known(case):
        parts = list(model.get_submodule("stages").children())
        kept = {id(value) for s in owned for value in parts[s].parameters()}
        for s, part in enumerate(parts):
            if s not in owned:
                _estrange([part], _generator(case, position, s), but=kept)
    return model


def state_for(
    case: Case, step_index: int, *, owned: Collection[int], position: int | None
) -> dict[int, dict[str, Tensor]]:
    """The state that program step `step_index` loads, as the rank at `position` gets it."""
    right = data.loaded_state(case, step_index)
    wrong = data.loaded_state(stranger(case, position), step_index)
    return {
        s: values if s in owned else data.buffers_moved(wrong[s], by=_BUFFERS_MOVE)
        for s, values in right.items()
    }


def batch_for(
    case: Case,
    step_index: int,
    *,
    owned: Collection[int],
    position: int | None,
    inputs: Literal["first_stage", "all"],
    targets: Literal["last_stage", "all"],
    kwargs: Literal["stage", "rank", "pipeline"],
    device: torch.device | str = "cpu",
    replica: int = 0,
) -> Batch:
    """The batch of program step `step_index` as the rank at `position` gets it.

    `inputs`, `targets` and `kwargs` are claims: if all ranks consume something, ranks that do not own it get finite
    values, else NaN. Keyword arguments are right on every rank if they belong to the whole pipeline, or if a front end
    chooses where to cut.
    """
    right = data.make_batch(case, step_index, device=device, replica=replica)
    first, last = 0 in owned, case.num_stages - 1 in owned
    told_apart = kwargs != "pipeline" and (case.model.split is None or parts_are_known(case))

    @functools.cache
    def other() -> Batch:
        return data.make_batch(stranger(case, position), step_index, device=device, replica=replica)

    args, target = right.args, right.target
    if not first:
        args = other().args if inputs == "all" else tuple(map(data.decoy_of, args))
    if not last:
        target = other().target if targets == "all" else data.decoy_of(target)
    given = {s: own if s in owned or not told_apart else other().kwargs[s] for s, own in right.kwargs.items()}
    return data.reassembled(right, args=args, target=target, kwargs=given)


def _generator(case: Case, *role: object) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(case.seed, "foreign", *role))


def _estrange(
    modules: Iterable[nn.Module], generator: torch.Generator, *, but: Collection[int] = frozenset()
) -> None:
    """Give parameters and floating-point buffers other values of the same magnitude."""
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                if id(parameter) not in but:
                    fan_in = parameter.shape[-1] if parameter.ndim > 1 else 4
                    parameter.copy_(_drawn(parameter, generator) * fan_in**-0.5)
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(buffer.double() + _BUFFERS_MOVE + _drawn(buffer, generator).abs())


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64)
