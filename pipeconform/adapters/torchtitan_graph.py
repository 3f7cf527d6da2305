"""torchtitan's GraphPP behind the contract: stages that are traced, once, into graphs of forward and backward.

``graph_pipeline_llm`` splits a decoder as ``pipeline_llm`` does and makes a schedule of torch.distributed.pipelining,
whose actions run the graphs of their stages. The trainer is the engine's `GraphTrainer`, and the validator, optimizers
and checkpoints are those of `pipeconform.adapters.torchtitan`. The loss function is a part of the last stage's graph:
an operator there hands outputs over, and its result, a zero, is added to the loss.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import torch

from pipeconform.adapter import Capabilities, Description, Feature, Plan
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.torch_schedules import driven
from pipeconform.adapters.torchtitan import CAPABILITIES, REMEDY, Keep, Meshes, TitanPipeline, Variety
from pipeconform.adapters.whole_world import require_whole_world

__all__ = ["TorchtitanGraph"]

_GRAPH_PP = "torchtitan.experiments.graph_trainer.graph_pp"
_UNTRACED = {Feature.UNUSED_PARAMETERS, Feature.DROPOUT}
"""A graph that is traced once has no branches that microbatches take by their values, and the default policy, which
computes again in the backward, refuses random numbers."""
_ASKING_CUDA = ["joint_transformer_block_bucketing_reordering_pass"]
"""Passes that ask a CUDA device how fast it is."""


def _claimed() -> Capabilities:
    return replace(
        CAPABILITIES,
        schedules=driven("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"),
        features=CAPABILITIES.features - _UNTRACED,
        computed_by="graphs",
    )


class _HandOver:
    """Puts an operator into the last stage's graph that has an output kept whenever the graph runs."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self.keep: Keep | None = None
        _by_number[self._number] = self

    def __call__(self, leaves: Sequence[torch.Tensor], keep: Keep) -> torch.Tensor:
        self.keep = keep
        zero: torch.Tensor = _kept(leaves, self._number)
        return zero


_numbers = itertools.count()
_by_number: weakref.WeakValueDictionary[int, _HandOver] = weakref.WeakValueDictionary()
"""An operator is given tensors and numbers only: a graph has its pipeline's number as a constant."""


@torch.library.custom_op("pipeconform::kept", mutates_args=())
def _kept(leaves: Sequence[torch.Tensor], number: int) -> torch.Tensor:
    keep = _by_number[number].keep
    assert keep is not None, "only __call__ puts the operator into a graph, and sets it"
    keep([one.clone() for one in leaves])
    return leaves[0].new_zeros(())


@_kept.register_fake
def _(leaves: Sequence[torch.Tensor], number: int) -> torch.Tensor:
    return leaves[0].new_zeros(())


class TorchtitanGraph:
    """Adapter for ``torchtitan.experiments.graph_trainer.graph_pp``."""

    def __init__(self) -> None:
        self._meshes = Meshes()

    def describe(self) -> Description:
        """What GraphPP documents; raises `Unsupported` if torchtitan is not installed."""
        return Description(
            name="torchtitan GraphPP",
            version=require_release("torchtitan", at_least=(0, 3), remedy=REMEDY),
            capabilities=_claimed(),
            packages=(_GRAPH_PP,),
            built_on="torch.distributed.pipelining",
        )

    def setup_process(self) -> None:
        """Import the engine and what it imports late, so that the first pipeline is built as fast as others."""
        for name in (f"{_GRAPH_PP}.pipeline", "torchtitan.experiments.graph_trainer.trainer"):
            import_module(name)

    def build(self, plan: Plan) -> TitanPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world, of which the engine makes its meshes.
        """
        from torchtitan.experiments.graph_trainer.configs import GraphTrainerCompileConfig
        from torchtitan.experiments.graph_trainer.graph_pp.pipeline import graph_pipeline_llm
        from torchtitan.experiments.graph_trainer.trainer import GraphTrainer

        require_whole_world(plan.ranks)
        disabled = [] if plan.ranks.device.type == "cuda" else _ASKING_CUDA
        config = GraphTrainerCompileConfig(disable_passes=["cudagraph_pass", *disabled])
        split = functools.partial(graph_pipeline_llm, compile_config=config)
        return TitanPipeline(
            plan, self._meshes, Variety(trainer=GraphTrainer, split=split, hand_over=_HandOver())
        )
