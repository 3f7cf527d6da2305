"""Helpers that many adapters would otherwise write themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeconform.claims import Placement
from pipeconform.contract.batch import Batch
from pipeconform.contract.operations import LoadState, Mode, Operation, StepResult, ZeroGrad
from pipeconform.contract.plan import AdamStep, SgdStep

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from pipeconform.contract.plan import Boundary

__all__ = [
    "Bystander",
    "ModuleSteps",
    "laid_out",
    "module_gradients",
    "module_state",
    "optimizer_of",
    "placement_of",
    "step_modules",
]


def placement_of(placement: Placement, *, num_ranks: int, num_stages: int) -> tuple[frozenset[int], ...]:
    """For each stage the set of pipeline ranks that own it.

    Raises:
        ValueError: `num_stages` cannot be laid out that way on `num_ranks` ranks.
    """
    if placement is not Placement.SINGLE_PROCESS and num_stages % num_ranks:
        raise ValueError(f"{num_stages} stages are not a multiple of {num_ranks} ranks")
    return laid_out(placement, num_ranks=num_ranks, num_stages=num_stages)


def laid_out(placement: Placement, *, num_ranks: int, num_stages: int) -> tuple[frozenset[int], ...]:
    """Like `placement_of`, but for any number of stages: the last round may be incomplete."""
    p = num_ranks
    if placement is Placement.SINGLE_PROCESS:
        return (frozenset({0}),) * num_stages
    if placement is Placement.LOOP:
        return tuple(frozenset({s % p}) for s in range(num_stages))
    if placement is Placement.V:
        return tuple(frozenset({s % p if (s // p) % 2 == 0 else p - 1 - s % p}) for s in range(num_stages))
    return tuple(frozenset({s % p, p - 1 - s % p}) for s in range(num_stages))


def _each(modules: Mapping[int, nn.Module]) -> Iterator[tuple[int, nn.Module]]:
    return iter(sorted(modules.items()))


class Bystander:
    """The pipeline of a rank outside the pipeline group: owns nothing and does nothing, whatever is claimed."""

    def owned(self) -> dict[int, nn.Module]:
        """Return no stage."""
        return {}

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Return an empty result."""
        return StepResult()

    def apply(self, operation: Operation) -> None:
        """Do nothing."""

    def gradients(self) -> dict[int, dict[str, torch.Tensor | None]]:
        """Return no stage."""
        return {}

    def state(self) -> dict[int, dict[str, torch.Tensor]]:
        """Return no stage."""
        return {}

    def open_stages(self, batch: Batch) -> dict[int, Any]:
        """Return no stage."""
        return {}

    def boundaries(self) -> tuple[Boundary, ...]:
        """Return no boundary."""
        return ()

    def gradient_norm(self) -> None:
        """Measure nothing."""

    def loss_scale(self) -> None:
        """Scale nothing."""

    def table(self) -> None:
        """Declare nothing."""

    def save(self, folder: Path) -> None:
        """Do nothing."""

    def restore(self, folder: Path) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def module_gradients(modules: Mapping[int, nn.Module]) -> dict[int, dict[str, torch.Tensor | None]]:
    """`gradients()` for an engine that trains the modules it was given in place."""
    return {s: {name: p.grad for name, p in module.named_parameters()} for s, module in _each(modules)}


def module_state(modules: Mapping[int, nn.Module]) -> dict[int, dict[str, torch.Tensor]]:
    """`state()` for an engine that trains the modules it was given in place."""
    return {
        s: {**dict(module.named_parameters()), **dict(module.named_buffers())} for s, module in _each(modules)
    }


def optimizer_of(
    parameters: Iterable[nn.Parameter], spec: SgdStep | AdamStep | None
) -> torch.optim.Optimizer | None:
    """The plan's torch optimizer over the parameters that require a gradient; None if there is nothing to do."""
    import torch

    trainable = [p for p in dict.fromkeys(parameters) if p.requires_grad]  # a shared parameter steps once
    if spec is None or not trainable:
        return None
    # on GPUs all are by default updated in one operation, which cannot take DTensors beside other tensors
    foreach = None if len({type(p.data) for p in trainable}) == 1 else False
    if isinstance(spec, SgdStep):
        return torch.optim.SGD(trainable, lr=spec.lr, momentum=spec.momentum, foreach=foreach)
    return torch.optim.Adam(trainable, lr=spec.lr, foreach=foreach)


def _cut_like(value: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """`whole`, or this rank's part of it if `value` is a `DTensor`."""
    if not hasattr(value, "device_mesh"):  # importing DTensor takes time that few cases need
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(value, DTensor)
    # every rank has the same values: nothing needs to be sent
    return distribute_tensor(whole, value.device_mesh, value.placements, src_data_rank=None)


class ModuleSteps:
    """What `step_modules` returns."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: SgdStep | AdamStep | None) -> None:
        self.modules = modules
        # a parameter that two stages share counts once
        held = dict.fromkeys(p for _, module in _each(modules) for p in module.parameters())
        self._trains = any(p.requires_grad for p in held)
        self.optimizer = optimizer_of(held, spec)
        """The torch optimizer; None if the plan has none or nothing requires a gradient."""

    def __call__(self, operation: Operation) -> None:
        """Carry out an operation."""
        import torch

        if isinstance(operation, ZeroGrad):
            for _, module in _each(self.modules):
                module.zero_grad(set_to_none=operation.set_to_none)
        elif isinstance(operation, LoadState):
            with torch.no_grad():
                for s, values in module_state(self.modules).items():
                    for name, value in values.items():
                        value.copy_(_cut_like(value, operation.state[s][name]))
        elif self.optimizer is not None:
            self.optimizer.step()
        elif self._trains:
            raise ValueError("the plan has no optimizer, but an optimizer step was asked for")


def step_modules(modules: Mapping[int, nn.Module], spec: SgdStep | AdamStep | None) -> ModuleSteps:
    """`apply()` for an engine that leaves zero_grad, the optimizer and loading to its user.

    What is returned has the torch `optimizer`, which saves and loads need: None if the plan has none, or nothing on
    this rank requires a gradient.

    Raises (when what is returned is called):
        ValueError: an optimizer step without an optimizer in the plan.
    """
    return ModuleSteps(modules, spec)
