"""What a rank does in the tests of replicas: two pipelines of two ranks, each with data of its own.

Rank 2 p + d is pipeline rank p of replica d.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferencePipeline
from pipeconform.reference_impl.communication_hooks import all_reduce_hook
from pipeconform.reference_impl.data_parallel import DataParallel, Options
from pipeconform.reference_impl.gradient_buckets import Bucket
from pipeconform.reference_impl.runtime import Step
from reference_ranks import Scenario, Unpipelined, batch_of, plan_of, same
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from pipeconform.adapter import Mode, Ranks, ZeroGrad
from pipeconform.case.case import ByHand
from pipeconform.execute import by_hand
from pipeconform.execute.answers import CheckedPipeline
from pipeconform.ranks.rank import RankContext
from pipeconform.schedule import Action, Kind

STAGES, REPLICAS = 2, 2
OWN = ("own", "own_views", "own_unused", "own_static")
DDP = ("ddp", "ddp_views", "ddp_unused", "ddp_static", "ddp_static_views", *OWN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replicated:
    """A scenario on replicas wrapped in one way, and what is done wrong."""

    scenario: Scenario
    wrap: str
    fault: str = ""
    by_hand: bool = False
    """Training steps are driven by the stages' own operations."""


class Reductions:
    """How often each stage's gradients were reduced since the last `take`."""

    def __init__(self) -> None:
        self._hooked: Counter[int] = Counter()
        self._scattered = 0

    def hook(self, state, bucket):  # torch refuses annotations that are text
        stage, group = state
        self._hooked[stage] += bucket.index() == 0
        return allreduce_hook(group, bucket)

    def own_hook(self, state: tuple[int, Any], bucket: Bucket) -> Any:
        self._hooked[state[0]] += bucket.index == 0
        return all_reduce_hook(state[1], bucket)

    @contextmanager
    def counting(self) -> Iterator[None]:
        outer = self

        class Count(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                outer._scattered += func.namespace == "c10d" and "reduce_scatter" in func.__name__
                return func(*args, **(kwargs or {}))

        with Count():
            yield

    def take(self) -> tuple[dict[int, int], int]:
        taken = dict(self._hooked), self._scattered
        self._hooked.clear()
        self._scattered = 0
        return taken


def wrapped(module: nn.Module, stage: int, wrap: str, mesh: DeviceMesh, reductions: Reductions) -> nn.Module:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    if wrap in OWN:
        options = Options(
            gradient_as_bucket_view=wrap.endswith("views"),
            find_unused=wrap.endswith("unused"),
            static_graph=wrap.endswith("static"),
        )
        own = DataParallel(module, group=mesh.get_group(), options=options)
        own.register_comm_hook((stage, mesh.get_group()), reductions.own_hook)
        return own
    if wrap in DDP:
        ddp = DistributedDataParallel(
            module,
            process_group=mesh.get_group(),
            gradient_as_bucket_view=wrap.endswith("views"),
            find_unused_parameters=wrap == "ddp_unused",
            static_graph="static" in wrap,
        )
        ddp.register_comm_hook((stage, mesh.get_group()), reductions.hook)
        return ddp
    if wrap == "sharded_inside":
        for child in module.children():
            fully_shard(child, mesh=mesh)
    return fully_shard(module, mesh=mesh)


class _Early(Step):
    """Gradients are reduced before the last backward."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        found = _backwards(self, actions)
        return {positions[-2]: [s] for s, positions in found.items()}


class _Always(Step):
    """Gradients are reduced after every backward."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        return {n: [s] for s, positions in _backwards(self, actions).items() for n in positions}


class _Never(Step):
    """Gradients are not reduced."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        return {}


class _AfterInput(Step):
    """Gradients are reduced when the last input part, or backward, has run; weight parts may follow."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        found = _backwards(self, actions, kinds=(Kind.B, Kind.I))
        return {positions[-1]: [s] for s, positions in found.items()}


FAULTS = {"": Step, "early": _Early, "always": _Always, "never": _Never, "after_input": _AfterInput}


def _backwards(
    step: Step, actions: Sequence[Action], *, kinds: tuple[Kind, ...] = (Kind.B, Kind.W)
) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for position, action in enumerate(actions):
        for leaf in action.leaves:
            if leaf.kind in kinds and leaf.stage in step.replicas:
                found.setdefault(leaf.stage, []).append(position)
    return found


def _ranks(context: RankContext, mesh: DeviceMesh) -> Ranks:
    stage, replica = divmod(context.rank, REPLICAS)
    return Ranks(
        device=torch.device("cpu"),
        rank=context.rank,
        world_size=context.world_size,
        pipeline_ranks=tuple(REPLICAS * p + replica for p in range(STAGES)),
        pipeline_rank=stage,
        pipeline_group=mesh["pp"].get_group(),
    )


@functools.cache  # gloo's threads look up a hundred times a second, in every group that is ever made
def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (STAGES, REPLICAS), mesh_dim_names=("pp", "dp"))


def _built(context: RankContext, job: Replicated, reductions: Reductions) -> ReferencePipeline:
    mesh = _mesh()
    plan = plan_of(job.scenario, _ranks(context, mesh))

    def builder(s: int) -> Any:
        return lambda: wrapped(plan.stages[s](), s, job.wrap, mesh["dp"], reductions)

    class Pipeline(ReferencePipeline):
        step_type = FAULTS[job.fault]

    stages = tuple(builder(s) for s in range(len(plan.stages)))
    return Pipeline(dataclasses.replace(plan, stages=stages))


def check(context: RankContext, payload: bytes) -> bytes:
    """Run a scenario; raise AssertionError where gradients are not the mean over unpipelined replicas."""
    job: Replicated = pickle.loads(payload)
    scenario, reductions = job.scenario, Reductions()
    pipeline = _built(context, job, reductions)
    reductions.take()  # a static graph is shown to its wrapper before the first step
    replica = context.rank % REPLICAS
    plain = [Unpipelined(scenario) for _ in range(REPLICAS)]
    for index, (kind, _, _) in enumerate(scenario.steps):
        if kind == "zero":
            pipeline.apply(ZeroGrad())
            for model in plain:
                for stage in model.stages:
                    stage.zero_grad()
            continue
        training = kind == "train"
        with reductions.counting():
            batch = batch_of(scenario, index, replica=replica)
            if training and job.by_hand:
                hand = ByHand(mixed=True, late=True)
                parameters = {s: dict(one.named_parameters()) for s, one in pipeline.owned().items()}
                checked = CheckedPipeline(pipeline, parameters=parameters.__getitem__)
                by_hand.drive(checked, pipeline.plan, batch, hand)
                result = None
            else:
                result = pipeline.run(Mode.TRAIN if training else Mode.EVAL, batch)
        shown = [
            model.run(batch_of(scenario, index, replica=d), training=training)
            for d, model in enumerate(plain)
        ]
        at = f"step {index}"
        if result is not None and scenario.num_stages - 1 in pipeline.owned():
            same(result.output, shown[replica][0], f"{at}, output")
        _check_counts(pipeline, job, reductions.take(), training=training, at=at)
        for s, module in pipeline.owned().items():
            stages = [model.stages[s] for model in plain]
            _check_gradients(pipeline, s, stages, at=f"{at}, stage {s}")
            for name, value in module.named_buffers():
                # DistributedDataParallel gives the first replica's buffers to all
                owner = stages[0] if job.wrap in DDP else stages[replica]
                same(value, owner.get_buffer(name), f"{at}, stage {s}, buffer {name}")
        if job.wrap in DDP:
            _equal_buffers(plain)
    return b""


def _equal_buffers(plain: Sequence[Unpipelined]) -> None:
    for stages in zip(*(model.stages for model in plain), strict=True):
        for name, value in stages[0].named_buffers():
            for other in stages[1:]:
                other.get_buffer(name).copy_(value)


def _check_counts(
    pipeline: ReferencePipeline,
    job: Replicated,
    found: tuple[dict[int, int], int],
    *,
    training: bool,
    at: str,
) -> None:
    hooked, scattered = found
    if job.wrap in DDP:
        expected = dict.fromkeys(pipeline.replicas, 1) if training else {}
        assert hooked == expected, f"{at}: reductions per stage are {hooked}, expected are {expected}"
        return
    parts = sum(_shares(module) for module in pipeline.owned().values()) if training else 0
    assert scattered == parts, f"{at}: {scattered} reductions, expected are {parts}"


def _shares(module: nn.Module) -> int:
    """How many groups of sharded parameters of a stage have a gradient."""
    groups = [part for part in module.modules() if hasattr(part, "unshard")]
    inner = {id(p): n for n, part in enumerate(groups) for p in part.parameters()}  # the innermost comes last
    return len({inner[id(p)] for p in module.parameters() if p.grad is not None})


def _check_gradients(pipeline: ReferencePipeline, s: int, stages: Sequence[nn.Module], *, at: str) -> None:
    for name, gradient in pipeline.gradients()[s].items():
        parts = [stage.get_parameter(name).grad for stage in stages]
        if all(part is None for part in parts):
            assert gradient is None, f"{at}, {name}: {gradient} instead of no gradient"
            continue
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        mean = sum((part for part in parts if part is not None), torch.zeros(())) / len(parts)
        same(whole, mean, f"{at}, gradient of {name}")
        alike = [torch.empty_like(whole) for _ in range(REPLICAS)]
        if s in pipeline.replicas:
            dist.all_gather(alike, whole, group=pipeline.replicas[s].groups[0])
            assert all(torch.equal(whole, one) for one in alike), f"{at}, {name}: replicas differ"


def fail_then_recover(context: RankContext, payload: bytes) -> bytes:
    """One replica fails in its first step; the step after it must be right. Returns the error, by its type."""
    job: Replicated = pickle.loads(payload)
    reductions = Reductions()
    pipeline = _built(context, job, reductions)
    text = "nothing was raised"
    failing = context.rank % REPLICAS == 1
    stages = pipeline.owned() if failing else {}
    handles = [stage.register_forward_pre_hook(_Fails(microbatch=1)) for stage in stages.values()]
    try:
        pipeline.run(Mode.TRAIN, batch_of(job.scenario, 0))
    except RuntimeError as error:
        text = f"{type(error).__name__}: {error}"
    for handle in handles:
        handle.remove()
    pipeline.apply(ZeroGrad())
    plain = Unpipelined(job.scenario)
    plain.run(batch_of(job.scenario, 1), training=True)
    pipeline.run(Mode.TRAIN, batch_of(job.scenario, 1))
    for s in pipeline.owned():
        _check_gradients(pipeline, s, [plain.stages[s]] * REPLICAS, at=f"after the error, stage {s}")
    return text.encode()


class _Fails:
    def __init__(self, microbatch: int) -> None:
        self._left = microbatch

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise ZeroDivisionError("on purpose")
