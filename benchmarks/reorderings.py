"""Correct reorderings stay inside the numeric classes, and three times the bound in one element is rejected.

    python benchmarks/reorderings.py [--models N] [--seed S] [--decoders | --narrow] [--out FILE]

For every random model (blocks, widths, dtypes, batch sizes and numbers of microbatches drawn from a fixed seed) the
gradients are computed as the oracle does, with their bounds, and in other correct ways:

* microbatches added up in another order;
* the gradients divided by m instead of the loss, or the gradient of the last stage's output;
* the backward in two parts per stage, first all inputs' gradients, then the weights';
* boundaries handed over with other strides than those that were computed.

With ``--decoders``, every stage has a layer of a language model, in float64 or float32. Their 16-bit bounds allow
everything. With ``--narrow``, models are in 16 bits and have the blocks whose kernels round once (`oracle.kernels`).

A bias before a batch norm, whose gradient is zero in exact arithmetic, is among the models. Then one element of one
gradient is moved by three times its bound. What has been done is kept in FILE, so a run that was stopped goes on;
exit code 1 when a reordering leaves its class or a wrong element is accepted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from measure import ROOT
from msgspec import structs

from pipeconform.adapter import GradientScale
from pipeconform.bounds.numerics import compare, ratio
from pipeconform.case import blocks
from pipeconform.case.build.data import loss_of, make_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Case, Kwarg, LossSpec, Model, Stage, Train, World
from pipeconform.observe.array import Array
from pipeconform.oracle.full_model import reference

WAYS = ("permuted", "divided late", "divided output", "split backward", "other strides")
BLOCKS = (
    blocks.Linear(),
    blocks.Mlp(),
    blocks.Norm(),
    blocks.BatchNorm(),
    blocks.Shared(),
    blocks.Tied(),
    blocks.Inplace(),
    blocks.Offsets(),
    blocks.Combined(),
    blocks.Combined(how="rows"),
    blocks.Common(),
    blocks.Pieces(),
)


def decoders_of(seed, index):
    """Model number `index` with a decoder in every stage, among other blocks, and keyword arguments for it or none."""
    d = random.Random(f"decoders/{seed}/{index}")
    case = case_of(seed, index)
    layers = (blocks.Decoder(), blocks.Decoder(kv_heads=2))
    others = (blocks.Linear(), blocks.Mlp(), blocks.Norm(), blocks.Attention(), *layers)
    stages = [[d.choice(layers), *([d.choice(others)] * d.choice([0, 0, 1]))] for _ in range(2)]
    for some in stages:
        d.shuffle(some)
    told = d.choice([(), ("positions",), ("mask",), ("positions", "mask")])
    model = structs.replace(
        case.model,
        width=d.choice([2, 3, 4, 8]),
        sequence=d.choice([2, 3, 4, 6]),
        dtype=d.choice(["float64", "float32"]),
        stages=tuple(Stage(blocks=tuple(some)) for some in stages),
        kwargs=tuple(Kwarg(stage=s, kind=kind) for s in range(2) for kind in told),
    )
    return structs.replace(case, model=model)


def narrow_of(seed, index):
    """Model number `index` in 16 bits, of blocks whose kernels round once."""
    d = random.Random(f"narrow/{seed}/{index}")
    case = case_of(seed, index)
    few = (blocks.Linear(), blocks.Linear(), blocks.Mlp(), blocks.Norm())
    kinds = (*few, blocks.Attention()) if case.model.sequence else few
    first = (blocks.Linear(bias=False),) if case.model.sequence else ()
    chosen = (d.choices(kinds, k=d.randint(0 if first else 1, 2)) for _ in range(2))
    stages = tuple(Stage(blocks=(*first, *own)) for own in chosen)
    model = structs.replace(case.model, dtype=d.choice(["bfloat16", "float16"]), stages=stages)
    return structs.replace(case, model=model)


def case_of(seed, index):
    """Model number `index`: a case of one training step that no engine runs."""
    d = random.Random(f"{seed}/{index}")
    sequence = d.choice([0, 0, 1, 3])
    kinds = (*BLOCKS, blocks.Attention()) if sequence else BLOCKS
    stages = [Stage(blocks=tuple(d.choice(kinds) for _ in range(d.randint(1, 3)))) for _ in range(2)]
    if d.random() < 0.25:
        stages[0] = Stage(blocks=(blocks.Linear(), blocks.BatchNorm()))
    m = d.choice([1, 2, 3, 4, 5, 7])
    return Case(
        model=Model(
            width=d.choice([1, 2, 3, 4, 8]),
            sequence=sequence,
            stages=tuple(stages),
            dtype=d.choice(["float64", "float64", "float32", "float32", "bfloat16", "float16"]),
        ),
        schedule="none",
        world=World(size=2, pipeline_ranks=(0, 1)),
        program=(Train(batch_size=m * d.choice([1, 2, 3]), num_microbatches=m),),
        loss=LossSpec(reduction=d.choice(["mean", "mean", "sum"])),
        seed=d.randrange(2**31),
    )


def otherwise(case, way, rng):
    """Per stage and name the gradients of another correct way."""
    stages, batch, loss = [build_stage(case, s) for s in range(2)], make_batch(case, 0), loss_of(case)
    m = batch.num_microbatches
    mean, late = case.loss.reduction == "mean", way == "divided late"
    order = list(range(m))
    if way == "permuted":
        rng.shuffle(order)
    for k in order:
        micro = batch.microbatches[k]
        first = stages[0](*micro.args, **micro.kwargs.get(0, {}))
        handed = first.detach()
        if way == "other strides" and handed.ndim > 1:
            handed = handed.transpose(0, -1).contiguous().transpose(0, -1)
        handed.requires_grad_()
        second = stages[1](handed, **micro.kwargs.get(1, {}))
        value = loss.function(second, micro.target)
        if way == "divided output" and mean:
            (gradient,) = torch.autograd.grad(value, second, retain_graph=True)
            second.backward(gradient / m)
            first.backward(handed.grad)
            continue
        value = value / m if mean and not late else value
        if way == "split backward":
            _split(value, handed, first, stages)
        else:
            value.backward()
            first.backward(handed.grad)
    if late and mean:
        for stage in stages:
            for p in stage.parameters():
                p.grad = None if p.grad is None else p.grad / m
    return {s: {n: p.grad for n, p in stage.named_parameters()} for s, stage in enumerate(stages)}


def _split(value, handed, first, stages):
    """Input gradients of both stages before any weight gradient; the first stage's input needs none."""
    (gradient,) = torch.autograd.grad(value, handed, retain_graph=True)
    roots = ((value, None), (first, gradient))
    for stage, (root, seed) in zip(reversed(stages), roots, strict=True):
        parameters = list(stage.parameters())
        for p, g in zip(
            parameters, torch.autograd.grad(root, parameters, seed, allow_unused=True), strict=True
        ):
            if g is not None:
                p.grad = g if p.grad is None else p.grad + g


def try_model(seed, index, drawn=case_of):
    """What model `index` showed: the worst ratio per way, and what is wrong."""
    case, rng = drawn(seed, index), random.Random(f"{seed}/{index}/ways")
    right = reference(case, scale=GradientScale(at="loss"), bounds="running").steps[0]
    worst, wrong = dict.fromkeys(WAYS, 0.0), []
    for way in WAYS:
        for s, named in otherwise(case, way, rng).items():
            for name, gradient in named.items():
                a, bound = right.gradients[s][name], right.gradient_bounds[s][name]
                if a is None or gradient is None:
                    if (a is None) is not (gradient is None):
                        wrong.append(f"{way}: {name} of stage {s} is there on one side only")
                    continue
                b = Array.of(gradient)
                worst[way] = max(worst[way], ratio(a, b, bound))
                if compare(a, b, bound=bound) is not None:
                    wrong.append(f"{way}: {name} of stage {s} leaves its class, {ratio(a, b, bound):.3g}")
    wrong += accepted(right, rng)
    return worst, wrong


def accepted(right, rng):
    """Move one element by three times its bound; yields a complaint if that is accepted."""
    found = [
        (s, name)
        for s, named in right.gradients.items()
        for name, a in named.items()
        if a is not None and a.size and bool(a.tensor().isfinite().all())
    ]
    if not found:
        return
    s, name = rng.choice(found)
    a, bound = right.gradients[s][name], right.gradient_bounds[s][name]
    value, limit = a.tensor().flatten(), bound.tensor().flatten()
    at = rng.randrange(value.numel())
    if not 0 < float(limit[at]) < float("inf"):
        return
    # in the value's own dtype: the next number that is at least three bounds away
    moved = (value[at].double() + 3 * limit[at]).to(value.dtype)
    while float(moved) - float(value[at]) < 3 * float(limit[at]) and bool(moved.isfinite()):
        moved = torch.nextafter(moved, torch.full_like(moved, float("inf")))
    value[at] = moved
    if compare(a, Array.of(value.reshape(a.shape)), bound=bound) is None:
        yield f"three bounds more in one element of {name} of stage {s} are accepted"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decoders", dest="drawn", action="store_const", const=decoders_of, default=case_of)
    parser.add_argument("--narrow", dest="drawn", action="store_const", const=narrow_of)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "reorderings.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    state = {"seed": chosen.seed, "done": 0, "worst": dict.fromkeys(WAYS, 0.0), "wrong": []}
    if chosen.out.exists():
        kept = json.loads(chosen.out.read_text())
        state = kept if kept["seed"] == chosen.seed else state
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    for index in range(state["done"], chosen.models):
        worst, wrong = try_model(chosen.seed, index, chosen.drawn)
        state["worst"] = {way: max(state["worst"][way], worst[way]) for way in WAYS}
        state["wrong"] += [f"model {index}: {one}" for one in wrong]
        state["done"] = index + 1
        if state["done"] % 50 == 0 or state["done"] == chosen.models:
            chosen.out.write_text(json.dumps(state, indent=1))
            print(f"{state['done']} of {chosen.models}, {len(state['wrong'])} wrong", file=sys.stderr)
    print(f"{state['done']} models, seed {chosen.seed}: {len(state['wrong'])} wrong")
    for way in WAYS:
        print(f"  {way:<16} worst ratio to the bound {state['worst'][way]:.3g}")
    for one in state["wrong"]:
        print(f"  {one}")
    return int(bool(state["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
