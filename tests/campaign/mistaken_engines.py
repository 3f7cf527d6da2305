"""An adapter around `small_engine`, which lies beside it, once for each of its engines."""

from __future__ import annotations

import small_engine
import torch

from pipeconform.adapter import (
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
    Mode,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)

FEATURES = {Feature.OUTPUTS, Feature.MICROBATCH_LOSSES, Feature.EVAL, Feature.ACCUMULATION, Feature.STATE}


class Adapter:
    engine = small_engine.Engine

    def describe(self):
        claims = Capabilities(
            schedules=(ScheduleClaim(name="GPipe", family="gpipe"),),
            features=frozenset(FEATURES),
            boundary=BoundaryClaim(dtypes=("float64", "float32")),
        )
        return Description(name="small engine", version="1", capabilities=claims)

    def setup_process(self):
        pass

    def build(self, plan):
        return Pipeline(plan, self.engine)


class Pipeline:
    def __init__(self, plan, engine):
        self.modules = plan.build_owned()
        self.apply = step_modules(self.modules, plan.optimizer)
        ((stage, module),) = self.modules.items()
        ranks, boundaries = plan.ranks.pipeline_ranks, plan.boundaries()
        (arriving,) = boundaries[stage - 1].tensors if stage else boundaries[0].tensors
        self.engine = engine(
            module,
            before=ranks[stage - 1] if stage else None,
            after=ranks[stage + 1] if stage + 1 < len(ranks) else None,
            group=plan.ranks.pipeline_group,
            shape=arriving.shape,
            dtype=arriving.dtype,
            loss=plan.loss.function,
            mean=plan.loss.reduction == "mean",
        )

    def run(self, mode, batch):
        inputs = [microbatch.args[0] for microbatch in batch.microbatches]
        targets = [microbatch.target for microbatch in batch.microbatches]
        outputs, losses = self.engine.step(inputs, targets, mode is Mode.TRAIN)
        if self.engine.after is not None:
            return StepResult()
        return StepResult(output=torch.cat(outputs), losses=losses if mode is Mode.TRAIN else None)

    def owned(self):
        return self.modules

    def gradients(self):
        return module_gradients(self.modules)

    def state(self):
        return module_state(self.modules)

    def close(self):
        self.modules = {}


def __getattr__(name):
    """An adapter of the engine with this name."""
    return type(name, (Adapter,), {"engine": getattr(small_engine, name)})
