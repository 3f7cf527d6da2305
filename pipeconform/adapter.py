"""The contract between pipeconform and a pipeline-parallel implementation.

An *adapter* is any object with the methods of :class:`Adapter`; nothing is subclassed. On every rank
of the world the harness calls, in this order::

    adapter.describe()            what it is and what it claims (plain data)
    adapter.setup_process()       once per process, before the first build
    pipeline = adapter.build(plan)
        pipeline.run(mode, batch) / .apply(operation) / .gradients() / .state()
    pipeline.close()

``build`` is called on *every* rank of the world, bystanders included, because creating a process
group is collective. The adapter answers a plan outside its claims with `Unsupported`, which is imported from
here. What is not claimed is reported as *not claimed*, never as passed; what is claimed is judged.

Gradients and state are keyed by the *builder's* parameter names: an engine that prefixes or shards
parameters maps them back. Every call is made on every rank in the same order, so any of them may
communicate; a bystander's pipeline does nothing (:class:`Bystander`).

This module defines the methods; `pipeconform.claims` defines the claims, and `pipeconform.contract` arguments and
results. Every name is imported from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pipeconform.claims import (
    BoundaryClaim,
    Capabilities,
    ClippingClaim,
    DataParallelClaim,
    Description,
    ErrorContract,
    Feature,
    GradientScale,
    MicrobatchRule,
    MistakeKind,
    Placement,
    ScheduleClaim,
    TensorParallelClaim,
    TracingClaim,
)
from pipeconform.contract.batch import Batch, Microbatch
from pipeconform.contract.helpers import (
    Bystander,
    laid_out,
    module_gradients,
    module_state,
    optimizer_of,
    placement_of,
    step_modules,
)
from pipeconform.contract.operations import LoadState, Mode, Operation, OptimizerStep, StepResult, ZeroGrad
from pipeconform.contract.placing import placed
from pipeconform.contract.plan import (
    AdamStep,
    Boundary,
    Clipping,
    DataParallel,
    Declared,
    Loss,
    LossScaling,
    Plan,
    Ranks,
    SgdStep,
    Split,
    SplitPoint,
    TensorSpec,
)
from pipeconform.contract.rules import Along, CustomMerge, CustomSplit, MergeRule, SplitRule, Whole
from pipeconform.contract.tensor import CutLayer, Held, HeldBatch, TensorParallel
from pipeconform.errors import Unsupported
from pipeconform.judged_on import JudgedOn, judged_on

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

__all__ = [
    "AdamStep",
    "Adapter",
    "Along",
    "Batch",
    "Boundary",
    "BoundaryClaim",
    "Bystander",
    "Capabilities",
    "Clipping",
    "ClippingClaim",
    "CustomMerge",
    "CustomSplit",
    "CutLayer",
    "DataParallel",
    "DataParallelClaim",
    "Declared",
    "DeclaresTable",
    "Description",
    "ErrorContract",
    "Feature",
    "GradientScale",
    "Held",
    "HeldBatch",
    "JudgedOn",
    "KnowsBoundaries",
    "LoadState",
    "Loss",
    "LossScaling",
    "MeasuresGradients",
    "MergeRule",
    "Microbatch",
    "MicrobatchRule",
    "MistakeKind",
    "Mode",
    "OffersStages",
    "Operation",
    "OptimizerStep",
    "Pipeline",
    "Placement",
    "Plan",
    "Ranks",
    "SavesTraining",
    "ScalesLosses",
    "ScheduleClaim",
    "SgdStep",
    "Split",
    "SplitPoint",
    "SplitRule",
    "StageOperations",
    "StepResult",
    "TensorParallel",
    "TensorParallelClaim",
    "TensorSpec",
    "TracingClaim",
    "Unsupported",
    "Whole",
    "ZeroGrad",
    "judged_on",
    "laid_out",
    "module_gradients",
    "module_state",
    "optimizer_of",
    "placed",
    "placement_of",
    "step_modules",
]


@runtime_checkable
class Pipeline(Protocol):
    """A built pipeline on one rank (a bystander's does nothing)."""

    def owned(self) -> Mapping[int, nn.Module]:
        """Stage index to the live module this rank trains."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run one step over the batch.

        When it returns, the results, the gradients and the state are ready on the device's stream that was current
        when it was called; they are read on that stream.
        """

    def apply(self, operation: Operation) -> None:
        """Carry out a program step that is not a run.

        With a fused optimizer every training run is followed by `OptimizerStep` and `ZeroGrad`, which the run has
        carried out already: the gradients of that run stay readable until `ZeroGrad`.
        """

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        """Per owned stage: builder's parameter name to gradient (None where there is none).

        A stage with several owners has its whole gradient, summed over them, on each. With `Plan.master_weights`,
        gradients may be float32, as those are that the copies are stepped with.
        """

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        """Per owned stage: builder's parameter and buffer names to values."""

    def close(self) -> None:
        """Free everything; idempotent; the process groups stay usable."""


@runtime_checkable
class MeasuresGradients(Protocol):
    """The additional method of a pipeline that claims `Feature.GRADIENT_NORM`."""

    def gradient_norm(self) -> torch.Tensor | None:
        """The 2-norm of all gradients of all stages, 0-d, the same on every pipeline rank; collective.

        Called on every rank after every training step; a bystander returns None.
        """


@runtime_checkable
class ScalesLosses(Protocol):
    """The additional method of a pipeline that claims `Feature.LOSS_SCALING` or ``SCALED_AUTOCAST``."""

    def loss_scale(self) -> float | None:
        """The factor by which the next step's losses will be multiplied, the same on every pipeline rank.

        Called on every rank after every step, if the plan has a `Plan.loss_scaling`; a bystander returns None.
        """


@runtime_checkable
class SavesTraining(Protocol):
    """The additional methods of a pipeline that claims `Feature.SAVING`, called on every rank.

    Both pipelines live in the same processes, one after the other: the first one is closed when all ranks have saved,
    then the other one is built, and restored. An engine that cannot be built twice in a process
    (`Capabilities.fresh_process_per_build`) is not judged by it. What is not claimed is not saved in any case, such as
    the optimizer's state without `Feature.OPTIMIZER`; what cannot be saved should not be claimed: `Unsupported` is for
    `Adapter.build` alone.
    """

    def save(self, folder: Path) -> None:
        """Write into an empty folder, which all ranks share, what training needs to go on.

        Such as parameters and buffers, the state of the optimizer, its float32 copies and the scale of the loss;
        gradients and the state of random generators need not be. What a user of the engine calls for it is called
        here: files that the adapter writes by itself judge the adapter, not the engine. Ranks that each write a file
        need names of their own. All is written when it returns, also what an engine writes in the background.
        """

    def restore(self, folder: Path) -> None:
        """Take over what another pipeline of the same plan, but with other parameters, has saved there.

        Called right after `Adapter.build`, when all ranks have saved.
        """


@runtime_checkable
class DeclaresTable(Protocol):
    """The additional method of a pipeline that claims `Feature.DECLARED_TABLE`."""

    def table(self) -> str | None:
        """The table of a training step with ``plan.num_microbatches`` microbatches, or None if there is none.

        In torch's compute-only CSV format: one line per pipeline rank, one cell per computation, such as
        ``0F0,0F1,0B0,0B1``; empty cells are idle slots. Every rank may return the whole table; a bystander
        returns None. Called once, after `Adapter.build`.
        """


class StageOperations(Protocol):
    """One stage of a training step that its user drives microbatch by microbatch.

    For each microbatch (calls in brackets only if the neighbouring stage lives on another rank)::

        [receive_forward]  forward  [send_forward]
        [receive_backward]  backward  [send_backward]                          full backward, or
        [receive_backward]  backward(full=False)  [send_backward]  …  backward_weight

    A neighbour on the same rank needs no message: `forward` and `backward` pass tensors on by themselves. A call
    that is not due raises an error that names the microbatch, in words, and changes nothing.
    """

    def receive_forward(self, microbatch: int) -> None:
        """Wait for the input."""

    def forward(self, microbatch: int) -> None:
        """Run the stage on the batch given to `OffersStages.open_stages`; the last one computes the loss."""

    def send_forward(self, microbatch: int) -> None:
        """Start to send the output."""

    def receive_backward(self, microbatch: int) -> None:
        """Wait for the gradient of the output."""

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        """Run the backward of the stage; ``full=False``: for its inputs only."""

    def backward_weight(self, microbatch: int) -> None:
        """Compute the weight part that ``backward(full=False)`` left out."""

    def send_backward(self, microbatch: int) -> None:
        """Start to send the gradient of the input."""

    def finish(self) -> None:
        """End the step: wait for sends, scale gradients as `run` does, forget every microbatch."""


@runtime_checkable
class OffersStages(Protocol):
    """The additional method of a pipeline that claims `Feature.STAGE_OPERATIONS`."""

    def open_stages(self, batch: Batch) -> Mapping[int, StageOperations]:
        """Begin a training step by hand: per owned stage its operations (a bystander has none).

        Called on every rank, so it may communicate. The step computes what ``run(Mode.TRAIN, batch)`` does.
        """


@runtime_checkable
class KnowsBoundaries(Protocol):
    """The additional method of a pipeline that claims `TracingClaim.knows_boundaries`."""

    def boundaries(self) -> Sequence[Boundary]:
        """What this rank's stages will hand on, known before the first step; called right after `build`.

        Shapes are those of the first microbatch; only shape and dtype are judged.
        """


@runtime_checkable
class Adapter(Protocol):
    """An implementation behind the contract."""

    def describe(self) -> Description:
        """Return name, version and claims as plain data; called in a rank process, must not start anything."""

    def setup_process(self) -> None:
        """Prepare a rank process once (environment, logging, engine-wide initialisation).

        In a distributed world the default process group exists already.
        """

    def build(self, plan: Plan) -> Pipeline:
        """Build on this rank; raise ``Unsupported(reason)`` for a plan outside the claims."""
