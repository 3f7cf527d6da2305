"""Adapters that use a right engine wrongly, each in the way that its kind invites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pipeconform.reference_impl.single_process import SingleProcessPipeline, SingleProcessReference
from torch import Tensor

from pipeconform.adapter import Batch, Mode, Plan, StepResult, module_gradients
from pipeconform.adapters.accelerate import AccelerateUnpadded
from pipeconform.adapters.apex import Apex
from pipeconform.adapters.automodel import AutoModel
from pipeconform.adapters.colossalai import ColossalAI
from pipeconform.adapters.deepspeed import DeepSpeed
from pipeconform.adapters.dualpipe import DualPipe
from pipeconform.adapters.galvatron import Galvatron
from pipeconform.adapters.internevo import InternEvo
from pipeconform.adapters.megatron import Megatron
from pipeconform.adapters.megatron_optimizer import MegatronSteps
from pipeconform.adapters.megatron_replicas import MegatronReplicas
from pipeconform.adapters.megatron_ties import MegatronTies
from pipeconform.adapters.nanotron import Nanotron
from pipeconform.adapters.olmo_core import OlmoCore
from pipeconform.adapters.picotron import PicotronUndivided
from pipeconform.adapters.torchgpipe import TorchGPipe
from pipeconform.adapters.torchtitan import Torchtitan
from pipeconform.adapters.zero_bubble import ZeroBubble


class _AveragingPipeline(SingleProcessPipeline):
    def backward(self, loss: Tensor, batch: Batch) -> None:
        super().backward(loss / batch.num_microbatches, batch)


class AveragesTwice(SingleProcessReference):
    """Averages over the microbatches a loss that the merged output has averaged."""

    pipeline = _AveragingPipeline


def _divided(plan: Plan) -> Plan:
    function, m = plan.loss.function, plan.num_microbatches
    return replace(
        plan, loss=replace(plan.loss, function=lambda *args, **kwargs: function(*args, **kwargs) / m)
    )


class _DividedLoss:
    """Gives the engine that stands behind it a loss that is divided by m."""

    def build(self, plan: Plan):
        return super().build(_divided(plan))


class AveragesTwiceOverTorchGPipe(_DividedLoss, TorchGPipe):
    """The same with torchgpipe."""


class DividesTwice(_DividedLoss, ColossalAI):
    """Divides by m a loss that the engine divides by m."""


class DividesTwiceInNanotron(_DividedLoss, Nanotron):
    """Divides by m a loss that the engine divides by m."""


class DividesTwiceInAutoModel(_DividedLoss, AutoModel):
    """The same with AutoModel."""


class DividesTwiceInOlmoCore(_DividedLoss, OlmoCore):
    """The same with OLMo-core."""


class DividesTwiceInInternEvo(_DividedLoss, InternEvo):
    """Divides by m a loss that the engine divides by m."""


class DividesTwiceInGalvatron(_DividedLoss, Galvatron):
    """The same with Hetu-Galvatron."""


class DividesInPicotron(_DividedLoss, PicotronUndivided):
    """Divides by m a loss whose gradients are to be summed."""


class DividesTwiceInTorchtitan(_DividedLoss, Torchtitan):
    """The same with torchtitan."""


class DividesTwiceInZeroBubble(_DividedLoss, ZeroBubble):
    """The same with the runtime of zero-bubble-pipeline-parallelism."""


class DividesTwiceInApex(_DividedLoss, Apex):
    """The same with apex."""


class ExportsInTraining(AccelerateUnpadded):
    """Prepares a model that is in training mode, which evaluations of what was exported are in, then."""

    def ready(self, model):
        return model.train()


class KeepsOwnersApart(DualPipe):
    """Takes the gradients of one of a stage's two ranks for all of them."""

    def build(self, plan: Plan):
        built = super().build(plan)
        built._owners = None
        return built


class ReadsClearedGradients(DeepSpeed):
    """Reads ``.grad`` after the engine has cleared it."""

    def build(self, plan: Plan):
        built = super().build(plan)

        def gradients() -> Mapping[int, Mapping[str, Tensor | None]]:
            return module_gradients(built.owned())

        built.gradients = gradients
        return built


class KeepsReplicasApart(DeepSpeed):
    """Switches the engine's reduction over replicas off, and takes gradients as they are."""

    def build(self, plan: Plan):
        built = super().build(plan)
        built._engine.pipeline_enable_backward_allreduce = False
        return built


class ReportsDividedLosses(Megatron):
    """Reports the losses as the schedule has divided them by m, in place."""

    def build(self, plan: Plan):
        built = super().build(plan)
        run = built.run

        def divided(mode: Mode, batch: Batch) -> StepResult:
            result = run(mode, batch)
            losses = (
                None if result.losses is None else [one / batch.num_microbatches for one in result.losses]
            )
            return replace(result, losses=losses)

        built.run = divided
        return built


class _OverOwnStages(MegatronSteps):
    """The optimizer is not told of the other ranks."""

    def __init__(self, plan, modules, *, alone):
        alone_too = replace(plan, ranks=replace(plan.ranks, pipeline_group=alone))
        super().__init__(alone_too, modules, alone=alone)


class ClipsByOwnNorm(Megatron):
    """Every rank clips by the norm of its own stages' gradients, and decides by itself about overflows."""

    steps = _OverOwnStages


class _WithOldCopies(MegatronSteps):
    def apply(self, operation):
        self.optimizer.reload_model_params = lambda *_: None
        super().apply(operation)


class LoadsOnlyTheModel(Megatron):
    """Loads parameters and leaves the optimizer's copies as they were."""

    steps = _WithOldCopies


class _Untold(MegatronReplicas):
    def tell(self, config):
        """Say nothing."""


class NeverFinishesReplicas(Megatron):
    """The schedule is not told to reduce the gradients of replicas at the end of a step."""

    replicas = _Untold


class _Twice(MegatronReplicas):
    def tell(self, config):
        super().tell(config)
        finalize = config.finalize_model_grads_func

        def twice(*args, **options):
            finalize(*args, **options)
            finalize(*args, **options)

        config.finalize_model_grads_func = twice


class FinishesReplicasTwice(Megatron):
    """Reduces the gradients of replicas once more; the mean of equal gradients is right."""

    replicas = _Twice


class _OwnEnd(MegatronTies):
    def __init__(self, plan, stages, group):
        super().__init__(plan, stages, None)


class KeepsEndsApart(Megatron):
    """The schedule gets no group of the pipeline's ends, and so adds up no gradients of what they share."""

    ties = _OwnEnd


class _CountedTwice(MegatronTies):
    def __init__(self, plan, stages, group):
        super().__init__(plan, stages, group)
        if self._weight is not None:
            self._weight.shared = False


class CountsSharedTwice(Megatron):
    """The last stage's copy of what both ends share is not marked as one, so norms count it twice."""

    ties = _CountedTwice


class ResumesWithoutMoments(DeepSpeed):
    """Loads what was saved without the optimizer's states, as for finetuning."""

    def build(self, plan: Plan):
        pipeline = super().build(plan)
        engine = pipeline._engine
        engine.load_checkpoint = partial(engine.load_checkpoint, load_optimizer_states=False)
        return pipeline


class SavesOnlyTheModel(Megatron):
    """Saves and loads as with ``--no-save-optim`` and ``--no-load-optim``."""

    def build(self, plan: Plan):
        pipeline = super().build(plan)
        pipeline._checkpoints._steps = None
        return pipeline


class SavesNoOptimizer(ColossalAI):
    """Calls the booster's ``save_model`` and ``load_model`` alone."""

    def build(self, plan: Plan):
        pipeline = super().build(plan)
        pipeline._boosted.optimizer = None
        return pipeline
