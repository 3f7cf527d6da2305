"""The reference implementation behind the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from pipeconform.adapter import (
    Batch,
    Boundary,
    Clipping,
    Description,
    LoadState,
    LossScaling,
    Mode,
    Operation,
    OptimizerStep,
    Plan,
    Split,
    StepResult,
    ZeroGrad,
    module_gradients,
    module_state,
    placed,
    step_modules,
)
from pipeconform.schedule import to_csv, without_communication
from pipeconform.stage_wrapping import wrapped

from .agreement import Agreement
from .batches import BatchCheck, input_gradients, parts_of, require_gradients, taken
from .claims import CAPABILITIES, ERRORS
from .float32_sums import Float32Replicas, Float32Sums
from .front_end import Ties, boundaries_of, copies, share, split_as_planned
from .link import Lengths, Link
from .masters import LossScale, Masters
from .microbatches import merge
from .norms import norm
from .operations import ChunkOperations
from .replicas import replicas_of
from .runtime import Step, Work, Yield
from .saved import SavedRank
from .stage import Stage
from .tables import actions_of, training_table
from .tracing import TracedPipe, build_stage

__all__ = ["ReferenceAdapter", "ReferencePipeline"]


class ReferencePipeline:
    """One rank's stages; a bystander's has none and does nothing."""

    stage_type: ClassVar[type[Stage]] = Stage
    link_type: ClassVar[type[Link]] = Link
    step_type: ClassVar[type[Step]] = Step
    check_type: ClassVar[type[BatchCheck]] = BatchCheck
    saved_type: ClassVar[type[SavedRank]] = SavedRank
    operations_type: ClassVar[type[ChunkOperations]] = ChunkOperations

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._lengths: Lengths = {}
        self._batches = self.check_type()
        self.placement = _checked_placement(plan)
        self.traced = self.make_traced(plan.split) if plan.split is not None else None
        owned = plan.build_owned() if self.traced is None else self._traced_modules(self.traced)
        built = {s: self.make_replicated(s, module) for s, module in owned.items()}
        found = {s: replicas_of(module) for s, module in built.items()}
        self.replicas = {s: replicas for s, replicas in found.items() if replicas is not None}
        self.modules = {s: self.replicas[s].module if s in self.replicas else built[s] for s in built}
        self.share_parameters()
        self.sums = self.make_sums() if plan.float32_sums else None
        if self.sums is not None:
            self.replicas = {s: Float32Replicas(own, self.sums) for s, own in self.replicas.items()}
        self._operate = step_modules(self.modules, plan.optimizer)
        # the copies get gradients without a loss's scale, so parameters in float32 have them where it is scaled
        copied = plan.master_weights or plan.loss_scaling is not None
        self.masters = self.make_masters() if copied else None
        self.scale = self.make_scale(plan.loss_scaling) if plan.loss_scaling is not None else None
        self.stages = {s: self.make_stage(s, module) for s, module in self.modules.items()}
        if self.modules:
            self.make_link().warm_up(self.placement, position=self.position)

    # The parts of a step. Faulty implementations (``faults/``) replace one of them.

    def make_traced(self, split: Split) -> TracedPipe | None:
        """The stages that the front end makes; None on a rank without stages."""
        return split_as_planned(self.plan, split) if self.plan.owned_stages() else None

    def share_parameters(self) -> None:
        """Let stages of this rank that share a parameter hold one object; called before the optimizer is made."""
        share(self.plan.tied, self.modules)

    def make_sums(self) -> Float32Sums:
        """What adds gradients up in float32."""
        return Float32Sums(self.own_parameters())

    def make_masters(self) -> Masters:
        """The float32 copies that the optimizer steps."""
        return Masters(self.own_parameters(), self.plan.optimizer)

    def make_scale(self, scaling: LossScaling) -> LossScale:
        """The scale of the loss."""
        return LossScale(scaling, self.plan.ranks.pipeline_group, self.plan.ranks.device)

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        """A stage, wrapped for data parallelism if the plan says so; every replica calls this in the same order."""
        return wrapped(self.plan, index, module)

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        """The stage that the runtime works with."""
        dim, again = self.plan.batch_dim, self.plan.recompute
        if self.traced is not None:
            return build_stage(module, self.traced.info, index=index, batch_dim=dim)
        builder = self.plan.deferred_weights(module)
        return self.stage_type(module, index=index, batch_dim=dim, dw_builder=builder, recompute=again)

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        """The microbatches of a batch."""
        parts = parts_of(batch)
        first, training = 0 in self.modules, mode is Mode.TRAIN
        return Work(
            inputs=[tuple(map(_cut_off, part.args)) for part in parts] if first else (),
            kwargs={
                s: [dict(part.kwargs[s]) for part in parts] for s in self.modules if s in parts[0].kwargs
            },
            targets=[part.target for part in parts],
            loss=self.make_loss(batch) if training else None,
            divisor=batch.num_microbatches if self.plan.loss.reduction == "mean" else 1,
            scale=1.0 if self.scale is None else self.scale.value,
            measured=self.make_loss(batch) if not training and not self.plan.second_schedule else None,
        )

    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        """The loss of one microbatch."""
        function = self.plan.loss.function
        return lambda output, target: function(output, target, **batch.loss_kwargs)

    def make_link(self) -> Link:
        """This rank's end of the pipeline group."""
        ranks = self.plan.ranks
        return self.link_type(
            ranks.pipeline_group,
            ranks=ranks.pipeline_ranks,
            device=ranks.device,
            lengths=self._lengths,
            mesh=ranks.mesh,
        )

    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        """The object that adds up the gradients of parameters that several ranks hold."""
        return Ties(shared, self.modules, placement=self.placement, position=self.position)

    def make_step(self, work: Work) -> Step:
        """The run through this rank's actions."""
        ranks = self.plan.ranks
        return self.step_type(
            work,
            stages=self.stages,
            placement=self.placement,
            rank=self.position,
            link=self.make_link(),
            name=f"rank {ranks.rank} (pipeline rank {self.position})",
            replicas=self.replicas,
        )

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        """The result in the contract's form."""
        m, last = batch.num_microbatches, len(self.placement) - 1 in self.modules
        training = mode is Mode.TRAIN
        whole = batch.source is None  # else there are no inputs that could have a gradient
        asked = batch.returns_outputs or not training
        return StepResult(
            output=self.make_output([done.outputs[k] for k in range(m)]) if last and asked else None,
            losses=[done.losses[k] for k in range(m)] if last and done.losses else None,
            input_gradients=input_gradients(batch, done.input_gradients)
            if 0 in self.modules and training and whole
            else None,
        )

    def make_output(self, outputs: Sequence[Any]) -> Any:
        """The batch's output from those of its microbatches."""
        return merge(outputs, batch_dim=self.plan.batch_dim, rules=self.plan.output_rules)

    # The contract.

    def owned(self) -> Mapping[int, nn.Module]:
        """Stage index to module."""
        return self.modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """One step.

        Raises:
            RuntimeError, TypeError, ValueError: On every rank alike, before anything is sent: gradients are switched
                off in training, the batch does not look like the ones before or cannot be split, or there is no table.
            PipelineError: A stage, the loss or another rank failed.
        """
        training = mode is Mode.TRAIN
        require_gradients(mode)
        if batch.source is not None:
            batch = taken(batch)
        self._batches.check(batch)
        if not self.modules:
            return StepResult()
        actions = actions_of(
            self.plan.schedule,
            placement=self.placement,
            num_ranks=len(self.plan.ranks.pipeline_ranks),
            rank=self.position,
            num_microbatches=batch.num_microbatches,
            training=training,
            given=self.plan.table,
            rewritten=self.plan.rewritten,
        )
        with ExitStack() as stack:
            for replicas in self.replicas.values():
                stack.enter_context(replicas.step())
            for stage in self.stages.values():
                stack.enter_context(stage.step(training=training))
            shared = self.plan.tied if self.traced is None else self.traced.info.shared
            if shared and training:
                stack.enter_context(self.make_ties(shared).step(self.make_link()))
            done = self.make_step(self.make_work(mode, batch)).run(actions)
        return self.make_result(mode, batch, done)

    def apply(self, operation: Operation) -> None:
        """Clear gradients, or clip them and step the optimizer, or load a state."""
        if isinstance(operation, OptimizerStep) and self.modules:
            self.update(operation)
            return
        self._operate(operation)
        if isinstance(operation, ZeroGrad) and self.sums is not None:
            self.sums.clear(set_to_none=operation.set_to_none)
        if isinstance(operation, LoadState) and self.masters is not None:
            self.masters.reload()

    def make_saved(self) -> SavedRank:
        """What is saved of this rank."""
        return self.saved_type(
            rank=self.plan.ranks.rank,
            modules=self.modules,
            optimizer=self._operate.optimizer,
            masters=self.masters,
            scale=self.scale,
        )

    def save(self, folder: Path) -> None:
        """Write this rank's file."""
        if self.modules:
            self.make_saved().save(folder)

    def restore(self, folder: Path) -> None:
        """Read this rank's file."""
        if self.modules:
            self.make_saved().load(folder)

    def update(self, operation: OptimizerStep) -> None:
        """Clip the gradients and step the optimizer, unless the loss is scaled and a gradient is not finite."""
        if self.scale is not None and not self.scale.allows(self.counted_gradients()):
            return
        if self.masters is not None:
            self.masters.take(scale=1.0 if self.scale is None else self.scale.value)
        if self.plan.clipping is not None:
            self.clip(self.plan.clipping)
        if self.masters is None:
            self._operate(operation)
        else:
            self.masters.step()

    def loss_scale(self) -> float | None:
        """The factor of the next step's losses."""
        return None if self.scale is None or not self.modules else self.scale.value

    def clip(self, clipping: Clipping) -> None:
        """Scale what is stepped, parameters' gradients or those of their copies, by the norm over all stages."""
        norm = self.norm_of_gradients(clipping.norm_type) / (self.loss_scale() or 1.0)
        factor = (clipping.max_norm / (norm + 1e-6)).clamp(max=1.0)
        for stepped in self.own_parameters() if self.masters is None else self.masters.copies.values():
            if stepped.grad is not None:
                stepped.grad.mul_(factor.to(stepped.grad.dtype))

    def gradients(self) -> Mapping[int, Mapping[str, Tensor | None]]:
        """Per owned stage and parameter."""
        return module_gradients(self.modules) if self.sums is None else self.sums.by_stage(self.modules)

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        """Per owned stage: parameters and buffers."""
        return module_state(self.modules)

    def table(self) -> str | None:
        """The table of a training step, without the messages."""
        if not self.modules or not self.plan.trains or self.plan.table is not None:
            return self.plan.table if self.modules else None
        ranks = len(self.plan.ranks.pipeline_ranks)
        lowered = training_table(
            self.plan.schedule,
            num_ranks=ranks,
            stages_per_rank=len(self.placement) // ranks,
            num_microbatches=self.plan.num_microbatches,
        )
        return to_csv(without_communication(lowered))

    def open_stages(self, batch: Batch) -> Mapping[int, ChunkOperations]:
        """Begin a training step by hand; nothing is sent yet.

        Raises:
            ValueError: On every rank alike: the batch cannot be split as asked.
        """
        parts_of(batch)  # refuses arguments that do not fit their rule
        if not self.modules:
            return {}
        step = self.make_step(self.make_work(Mode.TRAIN, batch))
        m = batch.num_microbatches
        return {s: self.operations_type(step, stage=s, num_microbatches=m) for s in self.stages}

    def boundaries(self) -> Sequence[Boundary]:
        """What this rank's traced stages will hand on."""
        if self.traced is None:
            return ()
        return boundaries_of(self.traced.info, tuple(self.modules), batch_dim=self.plan.batch_dim)

    def gradient_norm(self) -> Tensor | None:
        """The root of the sum of all squares, every parameter counted once."""
        return self.norm_of_gradients(2.0) if self.modules else None

    def norm_of_gradients(self, norm_type: float) -> Tensor:
        """The norm over all stages, 2 or infinity, every parameter counted once; collective."""
        ranks = self.plan.ranks
        return norm(self.counted_gradients(), norm_type, group=ranks.pipeline_group, device=ranks.device)

    def counted_gradients(self) -> Sequence[Tensor]:
        """The gradients that count in the norm on this rank."""
        elsewhere = copies(self.plan.tied, self.modules)
        return [p.grad for p in self.own_parameters() if p.grad is not None and p not in elsewhere]

    def own_parameters(self) -> Sequence[nn.Parameter]:
        """This rank's parameters, each once."""
        return [*dict.fromkeys(p for module in self.modules.values() for p in module.parameters())]

    def close(self) -> None:
        """Forget the stages' run-time state; nothing else is held."""
        for stage in self.stages.values():
            stage.clear()

    def _traced_modules(self, traced: TracedPipe) -> dict[int, nn.Module]:
        return {s: placed(traced.modules[s], self.plan.ranks.device) for s in self.plan.owned_stages()}

    @property
    def position(self) -> int:
        """This rank's position in the pipeline."""
        position = self.plan.ranks.pipeline_rank
        assert position is not None
        return position


class ReferenceAdapter:
    """Builds reference pipelines."""

    name: ClassVar[str] = "pipeconform reference"
    pipeline: ClassVar[type[ReferencePipeline]] = ReferencePipeline
    agreement: ClassVar[type[Agreement]] = Agreement

    def describe(self) -> Description:
        """Claim everything in the contract, except for schedules with two chains of stages."""
        return Description(name=self.name, version="0.1.0", capabilities=CAPABILITIES, errors=ERRORS)

    def setup_process(self) -> None:
        """Do nothing."""

    def build(self, plan: Plan) -> ReferencePipeline:
        """Build on this rank.

        Raises:
            Unsupported: On every rank alike: the size of the schedule is not claimed.
            ValueError: On every rank alike: the plan is wrong, or not the same on all ranks; or the stages are
                not placed as the schedule requires.
        """
        if plan.ranks.pipeline_rank is not None:
            self.agreement().check(plan)
        return self.pipeline(plan)


def _checked_placement(plan: Plan) -> tuple[int, ...]:
    for s, owners in enumerate(plan.placement):
        if len(owners) != 1:
            raise ValueError(f"stage {s} is placed on ranks {sorted(owners)}; the reference keeps it on one")
    return tuple(next(iter(owners)) for owners in plan.placement)


def _cut_off(part: Any) -> Any:
    """A microbatch of an input without its graph; its flag still says whether its gradient is wanted."""
    return part.detach().requires_grad_(part.requires_grad) if isinstance(part, Tensor) else part
