"""What a rank does for `step_time.py` and the overheads of observing: steps of a pipeline that stays built.

A pipeline lives in its rank process from its first block to the end of the benchmark. A block's seconds are
taken between two barriers, so that the slowest rank counts.
"""

from __future__ import annotations

import contextlib
import functools
import time

import msgspec
import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter
from torch import nn
from torch.distributed import pipelining

from pipeconform.adapter import Batch, Loss, Microbatch, Mode, Plan, Ranks, ZeroGrad
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.case.build import data
from pipeconform.case.case import Case
from pipeconform.execute.planning import Fittings, plan_of
from pipeconform.observe.recorder import ForwardRecorder
from pipeconform.observe.timeline import Timeline
from pipeconform.observe.traffic.recorder import TrafficRecorder

STEPS, WATCHED, RECORDED = "step_ranks:steps", "step_ranks:watched", "step_ranks:recorded"


class Block(msgspec.Struct, frozen=True):
    """Steps of one engine: ``reference`` or ``torch``."""

    engine: str
    width: int
    rows: int
    """Of one microbatch."""
    microbatches: int
    steps: int


class Watch(msgspec.Struct, frozen=True):
    """Steps of a case, with or without its timeline."""

    engine: str
    case: Case
    timeline: bool
    steps: int


class Record(msgspec.Struct, frozen=True):
    """Steps of a case, its traffic recorded or not."""

    engine: str
    case: Case
    traffic: bool
    steps: int


def stage(index, width):
    """A block of a transformer without its attention."""
    torch.manual_seed(index)
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )


def squares(output, target):
    return ((output - target) ** 2).mean()


def timed(step, count):
    """Seconds for `count` steps, all ranks together."""
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(count):
        step()
    dist.barrier()
    return time.perf_counter() - begun


def steps(context, payload):
    """Run a `Block` and return its seconds."""
    block = msgspec.json.decode(payload, type=Block)
    step, _ = _built(block.engine, block.width, block.rows, block.microbatches)
    return timed(step, block.steps)


def gradients(context, payload):
    """This rank's gradients after one step of a `Block`'s engine."""
    block = msgspec.json.decode(payload, type=Block)
    step, module = _built(block.engine, block.width, block.rows, block.microbatches)
    step()
    return [parameter.grad.tolist() for parameter in module.parameters()]


@functools.cache
def _built(engine, width, rows, m):
    make = {"reference": _reference, "torch": _torch}[engine]
    generator = torch.Generator().manual_seed(7)
    x, target = torch.randn(2, rows * m, width, generator=generator).unbind()
    return make(width, m, x, target)


def _reference(width, m, x, target):
    p, rank = dist.get_world_size(), dist.get_rank()
    ranks = Ranks(
        device=torch.device("cpu"),
        rank=rank,
        world_size=p,
        pipeline_ranks=tuple(range(p)),
        pipeline_rank=rank,
        pipeline_group=dist.new_group(list(range(p))),
    )
    plan = Plan(
        stages=tuple(functools.partial(stage, s, width) for s in range(p)),
        model=nn.Identity,
        schedule="1F1B",
        placement=tuple(frozenset({s}) for s in range(p)),
        loss=Loss(function=squares, reduction="mean"),
        optimizer=None,
        num_microbatches=m,
        microbatch_size=len(x) // m,
        batch_dim=0,
        boundaries=tuple,
        ranks=ranks,
    )
    batch = Batch(
        args=(x,),
        kwargs={},
        target=target,
        loss_kwargs={},
        batch_dim=0,
        num_microbatches=m,
        microbatches=tuple(
            Microbatch(args=(a,), kwargs={}, target=b)
            for a, b in zip(x.chunk(m), target.chunk(m), strict=True)
        ),
    )
    pipeline = ReferenceAdapter().build(plan)

    def step():
        pipeline.apply(ZeroGrad())
        pipeline.run(Mode.TRAIN, batch)

    return step, pipeline.owned()[rank]


def _torch(width, m, x, target):
    p, rank = dist.get_world_size(), dist.get_rank()
    module = stage(rank, width)
    group = dist.new_group(list(range(p)))
    schedule = pipelining.Schedule1F1B(
        pipelining.PipelineStage(module, rank, p, torch.device("cpu"), group=group), m, loss_fn=squares
    )

    def step():
        module.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == p - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()

    return step, module


def watched(context, payload):
    """Run a `Watch` and return its seconds."""
    watch = msgspec.json.decode(payload, type=Watch)
    step = _watching(watch.engine, msgspec.json.encode(watch.case), watch.timeline)
    return timed(step, watch.steps)


def recorded(context, payload):
    """Run a `Record` and return its seconds."""
    record = msgspec.json.decode(payload, type=Record)
    step = _watching(record.engine, msgspec.json.encode(record.case), False)
    with TrafficRecorder().recording() if record.traffic else contextlib.nullcontext():
        return timed(step, record.steps)


@functools.cache
def _watching(engine, case, timeline):
    case = msgspec.json.decode(case, type=Case)
    rank, members = dist.get_rank(), case.world.pipeline_ranks
    ranks = Ranks(
        device=torch.device("cpu"),
        rank=rank,
        world_size=len(members),
        pipeline_ranks=members,
        pipeline_rank=rank,
        pipeline_group=dist.new_group(list(members)),
    )
    recorder = ForwardRecorder(Timeline() if timeline else None)
    adapter = {"reference": ReferenceAdapter, "torch": TorchPipelining}[engine]()
    pipeline = adapter.build(plan_of(case, adapter.describe(), ranks, Fittings(recorder=recorder)))
    batch = data.make_batch(case, 0)

    def step():
        pipeline.apply(ZeroGrad())
        pipeline.run(Mode.TRAIN, batch)
        recorder.take()
        recorder.events()

    return step
