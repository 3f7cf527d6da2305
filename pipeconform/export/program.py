"""The program that an exported script consists of, with `comparison` and `launcher`; `script` writes them out as one.

It starts its own rank processes (or is started by torchrun), runs the case through the adapter, runs the same
model without any pipeline, and compares. Nothing in the three may import what is not exported: torch, the
standard library, and, inside functions, the modules that the script carries.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeconform.export.comparison import copied, differences, fired, flat, guard_of, merged, of

CASE = ""
ADAPTER = ""
WORLD = 0
SINGLE_PROCESS = False
FOUND = ""

DIFFERENT, STUCK = 10, 124  # exit codes of ranks


# What one rank does.


def load_adapter() -> Any:
    """The adapter under test."""
    import importlib

    module, _, name = ADAPTER.rpartition(":")
    found = getattr(importlib.import_module(module), name)
    return found() if isinstance(found, type) else found


def load_case() -> Any:
    """The case, from the text above."""
    from pipeconform.case import blocks, case, perturbations

    return eval(CASE, {**vars(perturbations), **vars(blocks), **vars(case)})  # noqa: S307 - our own text


def plan_of(case: Any, description: Any, group: Any, rank: int) -> Any:
    """What the adapter builds a pipeline from."""
    from pipeconform import adapter as contract
    from pipeconform.case import data, merges
    from pipeconform.case.case import Adam, Sgd
    from pipeconform.case.graph_layers import deferred_weights
    from pipeconform.case.modules import build_model, build_stage
    from pipeconform.case.whole import build_whole, split_of

    claim = description.capabilities.schedule(case.schedule)
    members = case.world.pipeline_ranks
    placement = contract.Placement(case.world.placement) if case.world.placement else claim.placement
    optimizer: Any = None
    if isinstance(case.optimizer, Sgd):
        optimizer = contract.SgdStep(lr=case.optimizer.lr, momentum=case.optimizer.momentum)
    elif isinstance(case.optimizer, Adam):
        optimizer = contract.AdamStep(lr=case.optimizer.lr)

    def builder(index: int) -> Callable[[], nn.Module]:
        return lambda: build_stage(case, index)

    first = case.runs[0]
    sizes = {size for run in case.runs for size in data.split_sizes(run.batch_size, run.num_microbatches)}
    position = 0 if SINGLE_PROCESS else members.index(rank) if rank in members else None
    return contract.Plan(
        stages=tuple(builder(s) for s in range(case.num_stages)),
        model=lambda: build_model(case) if case.model.split is None else build_whole(case),
        split=split_of(case),
        schedule=case.schedule,
        placement=contract.placement_of(placement, num_ranks=case.num_ranks, num_stages=case.num_stages),
        loss=data.loss_of(case),
        optimizer=optimizer,
        num_microbatches=first.num_microbatches,
        microbatch_size=data.split_sizes(first.batch_size, first.num_microbatches)[0],
        batch_dim=case.model.batch_dim,
        boundaries=lambda: data.boundaries_of(case),
        ranks=contract.Ranks(
            device=torch.device("cpu"),
            rank=rank,
            world_size=WORLD,
            pipeline_ranks=members,
            pipeline_rank=position,
            pipeline_group=group,
        ),
        trains=bool(case.trains),
        deferred_weights=deferred_weights,
        kwarg_rules=data.kwarg_rules(case),
        output_rules=merges.rules_of(case),
        tied=data.tied_names(case),
        varying_shapes=len(sizes) > 1,
    )


def batch_for(case: Any, index: int, plan: Any, capabilities: Any) -> Any:
    """The batch of a step; a rank that consumes no inputs, or no targets, gets NaN in their place."""
    from pipeconform.case import data

    def consumes(where: str) -> bool:
        position = plan.ranks.pipeline_rank
        owners = plan.placement[0] if where == "first_stage" else plan.placement[-1]
        return position is not None and (where == "all" or position in owners)

    batch = data.make_batch(case, index)
    inputs = consumes(capabilities.inputs_consumed_by)
    targets = consumes(capabilities.targets_consumed_by)
    return data.reassembled(
        batch,
        args=batch.args if inputs else tuple(map(data.decoy_of, batch.args)),
        target=batch.target if targets else data.decoy_of(batch.target),
    )


def pipelined(case: Any, rank: int, group: Any) -> dict[str, Any]:
    """Run the case through the adapter; every value that this rank can show, by what it is."""
    from pipeconform import adapter as contract
    from pipeconform.case import data
    from pipeconform.case.case import Eval, Load, Train, Zero
    from pipeconform.case.modules import seed_of, seed_process

    adapter = load_adapter()
    description = adapter.describe()
    adapter.setup_process()
    seed_process(seed_of(case.seed, "rank", rank))
    plan = plan_of(case, description, group, rank)
    pipeline = adapter.build(plan)
    shown: dict[str, Any] = {}
    for index, step in enumerate(case.program):
        at = f"step {index}"
        if isinstance(step, Train | Eval):
            mode = contract.Mode.TRAIN if isinstance(step, Train) else contract.Mode.EVAL
            batch = batch_for(case, index, plan, description.capabilities)
            with data.autocast_of(step, device="cpu"), guard_of(step):
                result = pipeline.run(mode, batch)
            if result.microbatches is None:
                shown |= flat(f"{at}, output", result.output)
                shown |= flat(f"{at}, losses", None if result.losses is None else list(result.losses))
            shown |= flat(f"{at}, input gradients", result.input_gradients)
        elif isinstance(step, Zero):
            pipeline.apply(contract.ZeroGrad(step.set_to_none))
        elif isinstance(step, Load):
            pipeline.apply(contract.LoadState(data.loaded_state(case, index)))
        else:
            pipeline.apply(contract.OptimizerStep())
        for s, values in pipeline.gradients().items():
            shown |= {f"{at}, {of(case, s)}gradient of {n}": copied(v) for n, v in values.items()}
        for s, values in pipeline.state().items():
            shown |= {f"{at}, {of(case, s)}{n}": copied(v) for n, v in values.items()}
        shown |= fired(case, index, pipeline.owned())
    pipeline.close()
    return shown


def rank_main(limit: float) -> int:
    """One rank: run, then let rank 0 compare what all have shown."""
    rank = int(os.environ["RANK"])
    watch(limit, rank)
    torch.set_num_threads(1)
    case = load_case()
    group = None
    if not SINGLE_PROCESS:
        dist.init_process_group("gloo")
        group = dist.new_group(list(case.world.pipeline_ranks))
        group = group if rank in case.world.pipeline_ranks else None
    shown: list[Any] = [pipelined(case, rank, group)]
    if not SINGLE_PROCESS:
        everybody: list[Any] = [None] * WORLD
        dist.all_gather_object(everybody, shown[0])
        shown = everybody
    if rank:
        return 0
    lines = list(differences(unpipelined(case), shown))
    print("\n".join(lines) if lines else "every value is that of the unpipelined model", flush=True)
    return DIFFERENT if lines else 0


def watch(limit: float, rank: int) -> None:
    """End this process, with the stacks of all its threads, when `limit` seconds have passed."""

    def give_up() -> None:
        print(f"rank {rank} has not ended after {limit:.0f} s; its threads stand here:", file=sys.stderr)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(STUCK)

    timer = threading.Timer(limit, give_up)
    timer.daemon = True
    timer.start()


# The same model without a pipeline.


def unpipelined(case: Any) -> dict[str, Any]:
    """What is right, by the names that `pipelined` uses."""
    from pipeconform.adapter import module_state
    from pipeconform.case import data
    from pipeconform.case.case import Eval, Load, Train, Zero
    from pipeconform.case.graph_layers import deferred_weights
    from pipeconform.case.modules import build_stage
    from pipeconform.case.whole import build_whole, whole_kwargs

    capabilities = load_adapter().describe().capabilities
    split = case.model.split is not None
    stages: list[nn.Module] = [build_stage(case, s) for s in range(case.num_stages)]
    if split:
        stages = [build_whole(case)]
    live = dict(enumerate(stages))
    optimizer = optimizer_of(case, [p for stage in stages for p in stage.parameters() if p.requires_grad])
    loss = data.loss_of(case)
    right: dict[str, Any] = {}
    for index, step in enumerate(case.program):
        at = f"step {index}"
        if isinstance(step, Train | Eval):
            training, batch = isinstance(step, Train), data.make_batch(case, index)
            outputs, losses = [], []
            for stage in stages:
                stage.train(training)
            with data.autocast_of(step, device="cpu"), torch.set_grad_enabled(training):
                for micro in batch.microbatches:
                    values: Any = micro.args
                    for s, stage in live.items():
                        args = values if isinstance(values, tuple | list) else (values,)
                        kwargs = whole_kwargs(micro.kwargs) if split else micro.kwargs.get(s, {})
                        values = stage(*args, **kwargs)
                    outputs.append(values)
                    if not training:
                        continue
                    one = loss.function(values, micro.target, **batch.loss_kwargs)
                    losses.append(one)
                    if one.requires_grad:
                        torch.autograd.backward(one * weight(loss, capabilities, batch, micro))
                        for stage in stages:
                            builder = deferred_weights(stage)
                            if builder is not None:
                                builder()()
            for stage in stages:
                stage.train()
            right |= flat(f"{at}, output", merged(outputs, batch.batch_dim))
            right |= flat(f"{at}, losses", losses if training else None)
            if training:
                gradients = [arg.grad if isinstance(arg, Tensor) else None for arg in batch.args]
                right |= flat(f"{at}, input gradients", tuple(gradients))
        elif isinstance(step, Zero):
            for stage in stages:
                stage.zero_grad(set_to_none=step.set_to_none)
        elif isinstance(step, Load):
            with torch.no_grad():
                for s, values in data.loaded_state(case, index).items():
                    for name, value in module_state({s: live[s]})[s].items():
                        value.copy_(values[name])
        elif optimizer is not None:
            optimizer.step()
        for s, stage in live.items():
            right |= {
                f"{at}, {of(case, s)}gradient of {n}": copied(p.grad) for n, p in stage.named_parameters()
            }
            right |= {f"{at}, {of(case, s)}{n}": copied(v) for n, v in module_state({s: stage})[s].items()}
        right |= fired(case, index, live)
    return right


def weight(loss: Any, capabilities: Any, batch: Any, micro: Any) -> float:
    """What a microbatch's loss counts in the sum that is differentiated."""
    if loss.reduction != "mean":
        return 1.0
    if capabilities.loss_over == "batch":
        return float(micro.target.shape[batch.batch_dim] / batch.target.shape[batch.batch_dim])
    return 1.0 / float(batch.num_microbatches)


def optimizer_of(case: Any, parameters: list[Any]) -> torch.optim.Optimizer | None:
    """The case's optimizer."""
    from pipeconform.case.case import Adam, Sgd

    if parameters and isinstance(case.optimizer, Sgd):
        return torch.optim.SGD(parameters, lr=case.optimizer.lr, momentum=case.optimizer.momentum)
    if parameters and isinstance(case.optimizer, Adam):
        return torch.optim.Adam(parameters, lr=case.optimizer.lr)
    return None
