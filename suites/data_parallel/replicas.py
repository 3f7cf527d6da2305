"""Replicas of the pipeline: the mean of their gradients, when it is taken, and what must not disturb it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from pipeconform.case.case import Optimize, Sgd, Train
from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import DELAY, SEVERAL_REPLICAS
from pipeconform.judge.data_parallel import (
    cut_alike,
    first_values,
    gradients_are_the_mean,
    hook_is_called,
    of_each_replica,
    replicas_of,
)
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.finding import of_first_wrong_step
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.lifecycle import traces_of_evaluations
from pipeconform.judge.masters import masters_are_kept
from pipeconform.judge.reductions import reduced_once
from pipeconform.judge.sums import sums_are_exact
from pipeconform.judge.tensor_parallel import cut_as_planned, values_within_bounds
from pipeconform.judge.training import buffers_are_right, gradients_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import ASYNCHRONOUS, FULL_MODEL, contract, documented, in_source, paper


@requirement(
    "DPC-1",
    title="The mean over replicas",
    level=MUST,
    about=(Focus.REPLICAS, Focus.SHARDED),
    trains=True,
    costly=True,
    by_schedule=True,
    condition=SEVERAL_REPLICAS,
    promise=(
        documented(
            "torch.nn.parallel.DistributedDataParallel documentation",
            "generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
        documented("torch.distributed.fsdp.fully_shard documentation", "distributed.fsdp.fully_shard.html"),
    ),
)
def the_mean_over_replicas(evidence: Evidence) -> Iterator[Finding]:
    """Replicas of the pipeline that are given different data have their own outputs and losses, and after
    every step the same gradients: the mean over the replicas of what each would have alone, on every stage,
    whether the stages are replicated or sharded. Parameters stay the same on all replicas over all optimizer
    steps.

    Replicas that are never synchronised train without an error, each on its share of the data; if all
    replicas get the same data, nothing shows.
    """
    yield from gradients_are_the_mean(evidence)


@requirement(
    "DPC-2",
    title="Synchronised once",
    level=MUST,
    about=(Focus.REPLICAS, Focus.SHARDED),
    trains=True,
    costly=True,
    by_schedule=True,
    observe=TIMELINE | {"reductions"},
    condition=SEVERAL_REPLICAS,
    promise=(
        documented(
            "torch.nn.parallel.DistributedDataParallel.no_sync documentation",
            "generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
        ),
        documented(
            "FSDPModule.set_requires_gradient_sync documentation",
            "distributed.fsdp.fully_shard.html#torch.distributed.fsdp.FSDPModule.set_requires_gradient_sync",
        ),
        in_source(
            "torch.distributed.pipelining, backward_maybe_with_nosync: reduced on the last step",
            "distributed/pipelining/stage.py",
        ),
    ),
)
def synchronised_once(evidence: Evidence) -> Iterator[Finding]:
    """In every training step, the gradients of a stage are summed over its replicas exactly once, in however
    many pieces, and not before its last backward, or weight part, of that step has begun, in whatever order
    the schedule runs them; there is no synchronisation per microbatch.

    A mean taken for every microbatch has the right value and m times the traffic; one taken before the last
    backward lacks a microbatch, or is taken again.
    """
    every, num = range(evidence.case.num_stages), len(evidence.case.world.pipelines)
    for replica in replicas_of(evidence):
        stages = {one.rank: [s for s in every if one in replica.owners(s)] for one in replica.members}
        for expected in evidence.runs(Train):
            for s in every if num > 1 else ():
                for one in replica.owners(s):
                    step = shown_step(one, expected.step)
                    evidence.compared()
                    yield from reduced_once(
                        evidence, expected, step, s, rank=one.rank, stages=stages[one.rank]
                    )
        yield from gradients_are_right(replica.uncounted)


@requirement(
    "DPC-3",
    title="Parameters that are used differently",
    level=MUST,
    about=(Focus.REPLICA_CONTENTS,),
    trains=True,
    costly=True,
    condition=SEVERAL_REPLICAS,
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, find_unused_parameters",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def parameters_that_are_not_used_alike(evidence: Evidence) -> Iterator[Finding]:
    """The mean is right where the number of microbatches changes between steps, where parameters or whole
    stages are frozen, where a parameter is used by no microbatch, or only by some microbatches of some
    replicas (the others count as zero; a parameter that no replica uses has no gradient), and with buffers,
    of which each replica has its own.

    A count of backwards remembered from an earlier step, or a bucket that waits for a gradient that never
    comes, shows only with such models.
    """
    yield from of_each_replica(buffers_are_right)(evidence)
    yield from gradients_are_the_mean(evidence)


@requirement(
    "DPC-4",
    title="Accumulation and the wrapper's options",
    level=MUST,
    about=(Focus.REPLICA_OPTIONS,),
    trains=True,
    costly=True,
    condition=SEVERAL_REPLICAS,
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, gradient_as_bucket_view, static_graph, "
        "register_comm_hook",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def accumulation_and_options(evidence: Evidence) -> Iterator[Finding]:
    """The mean is right where gradients are accumulated over steps, and with those options of the wrapper
    that the implementation claims: gradients that are views of their buckets, a user's communication hook
    (which is given every gradient), a static graph.

    Options change who writes a gradient, and where; engines that reach into a wrapper know only some of the
    ways.
    """
    replicas = evidence.case.world.replicas
    assert replicas is not None
    for one in replicas_of(evidence) if replicas.hook else ():
        yield from hook_is_called(one)
    yield from gradients_are_the_mean(evidence)


@requirement(
    "DPC-5",
    title="Tied weights in replicas",
    level=MUST,
    about=(Focus.REPLICA_TIES,),
    trains=True,
    costly=True,
    condition=SEVERAL_REPLICAS,
    promise=paper("Megatron-LM (arXiv:1909.08053), embeddings of the first and the last stage"),
)
def tied_weights_in_replicas(evidence: Evidence) -> Iterator[Finding]:
    """A weight that stages of different ranks share has, in every one of them and in every replica, the sum
    over the stages of the mean over the replicas as its gradient, and the same value after every optimizer
    step.

    There are two sums, over stages and over replicas, and one of them is easily taken in one replica only, or
    twice: the copies drift apart.
    """
    for expected in evidence.runs((Train, Optimize)):
        held = {
            (one.rank, s): shown_step(one, expected.step).parameters.get(s, {}).get("tied")
            for one in evidence.members
            for s in evidence.case.model.tied
            if one.pipeline_rank in evidence.placement[s]
        }
        evidence.compared(len(held))
        if len(set(held.values())) > 1:
            text = "the tied weight is not the same everywhere: " + "; ".join(
                f"rank {rank}, stage {s} has {first_values(array)}" for (rank, s), array in held.items()
            )
            rank, s = next(iter(held))
            yield Finding(kind="ties differ", message=text, step=expected.step, rank=rank, stage=s)
    yield from gradients_are_the_mean(evidence)


@requirement(
    "DPC-6",
    title="Replicas that are late",
    level=MUST,
    about=(Focus.REPLICA_DELAYS,),
    trains=True,
    costly=True,
    condition=DELAY,
    promise=ASYNCHRONOUS,
)
def late_replicas(evidence: Evidence) -> Iterator[Finding]:
    """A delay of one replica, before or after a reduction, in a backward, or after the loss, changes nothing.

    A reduction that is not waited for has usually ended by the time its result is read.
    """
    yield from gradients_are_the_mean(evidence)


@requirement(
    "DPC-7",
    title="Tensor-parallel stages",
    level=MUST,
    about=(Focus.TENSOR,),
    trains=True,
    costly=True,
    promise=(
        documented("torch.distributed.tensor.parallel documentation", "distributed.tensor.parallel.html"),
        paper("Megatron-LM (arXiv:1909.08053)"),
    ),
)
def tensor_parallel_stages(evidence: Evidence) -> Iterator[Finding]:
    """Stages whose linear maps are cut by columns or by rows over several ranks, with the main stream between
    them whole or cut along the sequence, alone or together with replicas in fully_shard, have the reference's
    outputs, losses, gradients and updates on every rank. Every rank holds its part of every parameter, cut as
    planned; the gradient is cut in the same way or, for a parameter that all ranks have whole, may still have
    to be summed over the ranks.

    The parts of a stage compute one thing together: parts with different data, a gradient that is averaged
    over parts as if they were replicas, or a part that is taken for the whole give wrong gradients of the
    right shape.
    """
    yield from _parts_are_right(evidence)


@requirement(
    "DPC-8",
    title="Shards",
    level=MUST,
    about=(Focus.SHARDED,),
    trains=True,
    any_schedule=True,
    condition=SEVERAL_REPLICAS,
    promise=documented(
        "torch.distributed.fsdp.fully_shard documentation", "distributed.fsdp.fully_shard.html"
    ),
)
def shards(evidence: Evidence) -> Iterator[Finding]:
    """Where stages are sharded, every rank holds its own replica's shard of every parameter, its gradient is
    cut in the same way (placement, mesh and shape), every shard equals that of the reference, and state and
    gradients have the builder's names.

    Checkpoints and optimizers work shard by shard; a shard of another rank, or a prefix that a wrapper left,
    is found only when a run is resumed.
    """
    for one in evidence.members:
        for step in one.steps:
            for s, gradients in step.gradients.items():
                evidence.compared(len(step.parameters.get(s, {})))
                yield from cut_alike(
                    one.rank, step, s, gradients, replica=evidence.case.world.replica_of(one.rank)
                )
    yield from gradients_are_the_mean(evidence)


@requirement(
    "DPC-9",
    title="Synchronised batch norm",
    level=MUST,
    about=(Focus.REPLICA_NORMS,),
    trains=True,
    costly=True,
    condition=SEVERAL_REPLICAS,
    promise=documented("torch.nn.SyncBatchNorm documentation", "generated/torch.nn.SyncBatchNorm.html"),
)
def synchronised_batch_norm(evidence: Evidence) -> Iterator[Finding]:
    """A batch norm inside a stage that takes its statistics over all replicas sees the same microbatch of all
    of them, once in the forward and once in the backward: outputs, losses, running statistics and gradients
    are those of a reference that normalises the replicas' microbatches together.

    Replicas that run their microbatches in different orders, or one stage more often than the others do, mix
    the statistics of different samples, or wait for each other forever.
    """
    for replica in replicas_of(evidence):
        yield from buffers_are_right(replica)
        yield from values_within_bounds(replica)


@requirement(
    "DPC-10",
    title="Replicas and cut stages with something else",
    level=MUST,
    about=(Focus.REPLICAS_TOGETHER, Focus.TENSOR_TOGETHER),
    trains=True,
    costly=True,
    promise=(FULL_MODEL, contract("Capabilities: what is claimed holds together, too")),
)
def replicas_and_cut_stages_with_something_else(evidence: Evidence) -> Iterator[Finding]:
    """What an implementation claims of one pipeline holds for replicas and for stages that are cut over ranks, too:
    keyword arguments, evaluation, loading a state, activation checkpointing, the model's own hooks, clipping, float32
    copies of parameters, scaled losses, sums in float32 and batches from a source in replicas; keyword arguments,
    frozen parts, accumulation, sizes that change, loading a state and evaluation with cut stages. Every value is the
    reference's, and an evaluation leaves gradients, buffers and parameters as they are.

    A wrapper has another forward, other parameters and other hooks than the module inside: what was tried without
    one may pass it by. Replicas that clip by norms of their own, or of which only one skips a step, drift apart.
    """
    judge = _replicas_are_right if evidence.case.world.tensor is None else _parts_are_right
    yield from of_first_wrong_step(chain(judge(evidence), traces_of_evaluations(evidence)))


def _replicas_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Gradients are the mean over replicas, in float32 where that is asked for; copies are stepped with them."""
    yield from gradients_are_the_mean(evidence)
    yield from sums_are_exact(evidence)
    if isinstance(evidence.case.optimizer, Sgd) and evidence.case.optimizer.masters:
        yield from masters_are_kept(evidence)


def _parts_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Every rank holds its part of every parameter, cut as planned, and all values are within their bounds."""
    for one in evidence.members:
        for step in one.steps:
            for s in step.parameters:
                yield from cut_as_planned(evidence, one.rank, step, s)
    for replica in replicas_of(evidence):
        yield from values_within_bounds(replica)


@requirement(
    "DPC-11",
    title="Mixed precision of shards",
    level=MUST,
    about=(Focus.MIXED_REPLICAS,),
    trains=True,
    costly=True,
    by_schedule=True,
    promise=(
        documented(
            "torch.distributed.fsdp.MixedPrecisionPolicy documentation, reduce_dtype: gradients are accumulated in it "
            "where their reduction is disabled",
            "distributed.fsdp.fully_shard.html#torch.distributed.fsdp.MixedPrecisionPolicy",
        ),
        contract("DataParallel.mixed_precision: gradients are added up and reduced in float32"),
    ),
)
def mixed_precision_of_shards(evidence: Evidence) -> Iterator[Finding]:
    """Where stages are sharded with parameters that are cast to bfloat16, outputs, losses and gradients are those of
    a model that computes in bfloat16, and gradients are added up over microbatches, and reduced over replicas, in
    float32.

    Most large models are trained like this. What a schedule adds up by itself, without the wrapper, is added up in
    16 bits: with many microbatches most of them are small against the sum, and the loss shows nothing.
    """
    yield from gradients_are_the_mean(evidence)
