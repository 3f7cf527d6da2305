"""The data of a case's steps: batches, decoys, microbatches and the loss.

Every tensor is drawn from its own generator, seeded by case, step and role: all microbatches differ, targets differ
from inputs, and any process can make any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional

from pipeconform.adapter import (
    Along,
    Batch,
    Boundary,
    CustomSplit,
    Loss,
    Microbatch,
    SplitRule,
    TensorSpec,
    Whole,
    module_state,
)
from pipeconform.case.build import block_masks, exact
from pipeconform.case.build.decoder import EARLIER
from pipeconform.case.build.modules import VOCABULARY, build_stage
from pipeconform.case.case import Carried, Case, Eval, Kwarg, KwargKind, LossSpec, Model, Train
from pipeconform.case.model import stages_given
from pipeconform.case.seeds import seed_of

__all__ = [
    "IGNORED",
    "autocast_dtype",
    "autocast_in",
    "boundaries_of",
    "buffers_moved",
    "decoy_of",
    "kwarg_gradients",
    "kwarg_rules",
    "loaded_state",
    "loss_of",
    "make_batch",
    "passed_on",
    "reassembled",
    "specs_of",
    "split",
    "split_sizes",
    "tied_names",
]

IGNORED = -100
"""The target value that cross-entropy ignores (torch's default ``ignore_index``)."""
_LOADED_BUFFERS_MOVE = 0.25


def split_sizes(batch_size: int, num_microbatches: int) -> list[int]:
    """Sizes of the microbatches: as equal as possible, larger ones first (``torch.tensor_split``)."""
    small, extra = divmod(batch_size, num_microbatches)
    return [small + (k < extra) for k in range(num_microbatches)]


def split(value: Any, *, num_microbatches: int, batch_dim: int) -> list[Any]:
    """Split a tensor along its batch dimension; repeat anything else."""
    if block_masks.is_block_mask(value):
        return block_masks.cut(value, num_microbatches)
    if not isinstance(value, Tensor):
        return [value] * num_microbatches
    sizes = split_sizes(value.shape[batch_dim], num_microbatches)
    return list(value.split(sizes, dim=batch_dim))  # type: ignore[no-untyped-call]


def kwarg_rules(case: Case) -> dict[int, dict[str, SplitRule]]:
    """The split rules of keyword arguments, by stage and name; only of those that are not split by default.

    They are in the reverse order of the arguments: a rule belongs to a name and not to a place.
    """
    rules: dict[str, SplitRule] = {
        "turned": Along(1),
        "rows": Along(0),
        "whole": Whole(),
        "listed": CustomSplit(_by_samples),
    }
    found: dict[int, dict[str, SplitRule]] = {}
    for kwarg in reversed(case.model.kwargs):
        if kwarg.kind in rules:
            found.setdefault(kwarg.stage, {})[kwarg.name] = rules[kwarg.kind]
    return found


def _by_samples(values: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """Cut a list that has an entry per sample as the samples are cut."""
    return [values[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(len(sizes))]


def _generator(case: Case, *role: object) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(case.seed, *role))


def _leading(case: Case, batch_size: int) -> tuple[int, ...]:
    """The shape of a batch without the width."""
    model = case.model
    if not model.sequence:
        return (batch_size,)
    return (batch_size, model.sequence) if model.batch_dim == 0 else (model.sequence, batch_size)


def _carried(case: Case, kind: Carried, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, case.model.dtype)
    match kind:
        case "positions":
            return torch.randint(0, 8, leading, generator=generator)
        case "mask":
            return torch.rand(leading, generator=generator) < 0.5
        case "scale":
            return (0.5 + torch.rand(leading, generator=generator, dtype=torch.float64)).to(dtype)
    return torch.randn((*leading, case.model.width), generator=generator, dtype=torch.float64).to(dtype)


def _objects(batch_size: int, generator: torch.Generator) -> dict[str, Any]:
    """A dict of objects that no engine can split: a number, a text, None and a list with one name per sample."""
    factor = round(float(torch.rand((), generator=generator)), 3)
    names = [f"sample {i}" for i in torch.randperm(batch_size, generator=generator).tolist()]
    return {"factor": factor, "text": "gain" * round(1 + 8 * factor), "nothing": None, "names": names}


def _for_decoders(
    kind: KwargKind,
    leading: tuple[int, ...],
    *,
    batch_dim: int,
    generator: torch.Generator,
    device: torch.device | str,
) -> Any:
    """A mask, a block mask, or positions of tokens in documents of random lengths."""
    match kind:
        case "mask":
            return (torch.rand(leading, generator=generator) < 0.6).to(device)
        case "window":
            size = int(torch.randint(1, leading[1], (), generator=generator)) if leading[1] > 1 else 0
            return block_masks.window(size, sequence=leading[1], device=device)
    places = _positions(leading, batch_dim=batch_dim, generator=generator).to(device)
    return block_masks.block_mask_of((places == 0).cumsum(1)) if kind == "block_mask" else places


def _positions(leading: tuple[int, ...], *, batch_dim: int, generator: torch.Generator) -> Tensor:
    """The positions of tokens in documents of random lengths, the first of which may have begun earlier."""
    begins = torch.rand(leading, generator=generator) < 0.4
    places = torch.randint(0, EARLIER, leading, generator=generator).movedim(batch_dim, 0)
    for i, begin in enumerate(begins.movedim(batch_dim, 0).unbind(1)[1:], start=1):
        places[:, i] = torch.where(begin, 0, places[:, i - 1] + 1)
    return places.movedim(0, batch_dim)


def _target(
    case: Case, leading: tuple[int, ...], sizes: Sequence[int], generator: torch.Generator, *, step_index: int
) -> Tensor:
    model = case.model
    if case.loss.kind == "mse":
        shape = (*leading, model.width)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(getattr(torch, model.dtype))
    target = torch.randint(0, model.classes, leading, generator=generator)
    if case.loss.ignore:
        start = 0
        for ignored, size in zip(_ignored(case.loss, sizes, step_index), sizes, strict=True):
            target.narrow(model.batch_dim, start, ignored).fill_(IGNORED)
            start += size
    return target


def _ignored(spec: LossSpec, sizes: Sequence[int], step_index: int) -> list[int]:
    """The number of samples at the beginning of each microbatch that are ignored."""
    if not spec.counted:
        return [k % size for k, size in enumerate(sizes)]  # never all of them
    shifted = enumerate(sizes, start=step_index)
    return [size if len(sizes) > 1 and k % 3 == 1 else k % size for k, size in shifted]


def _loss_kwargs(spec: LossSpec, target: Tensor) -> dict[str, float]:
    if spec.counted:
        return {"scale": 1 / int((target != IGNORED).sum())}
    return {"scale": 1.75} if spec.scaled else {}


def _last_run(case: Case) -> int:
    return max(index for index, step in enumerate(case.program) if isinstance(step, Train | Eval))


def make_batch(case: Case, step_index: int, *, device: torch.device | str = "cpu", replica: int = 0) -> Batch:
    """The batch of program step `step_index`, whole and split into microbatches; every replica has its own.

    Raises:
        TypeError: that step has no batch.
    """
    if replica:
        case = structs.replace(case, seed=seed_of(case.seed, "replica", replica))
    step, model = case.program[step_index], case.model
    if not isinstance(step, Train | Eval):
        raise TypeError(f"program[{step_index}] is {step!r}, which has no batch")
    m, leading = step.num_microbatches, _leading(case, step.batch_size)
    split = model.split
    if split is not None and (split.shorter_example or (split.longer and step_index == _last_run(case))):
        leading = tuple(size + (dim != model.batch_dim) for dim, size in enumerate(leading))
    dtype = getattr(torch, model.dtype)
    differentiated = model.input_requires_grad and isinstance(step, Train)
    if model.is_exact:
        main = exact.inputs_of(case, step_index, replica=replica)
    elif model.tokens:
        main = torch.randint(0, VOCABULARY, leading, generator=_generator(case, step_index, "input"))
    else:
        shape = (*leading, model.width)
        main = torch.randn(shape, generator=_generator(case, step_index, "input"), dtype=torch.float64).to(
            dtype
        )
    args = [main.to(device).requires_grad_(differentiated)]
    for position, kind in enumerate(model.carried):
        value = _carried(case, kind, leading, _generator(case, step_index, kind, position)).to(device)
        args.append(value.requires_grad_(kind == "stream" and differentiated))
    kwargs: dict[int, dict[str, Any]] = {}
    for kwarg in model.kwargs:
        generator = _generator(case, step_index, kwarg.role, kwarg.stage)
        gain: Any = torch.rand(leading, generator=generator, dtype=torch.float64).to(dtype).to(device)
        if kwarg.is_for_decoders:
            gain = _for_decoders(
                kwarg.kind, leading, batch_dim=model.batch_dim, generator=generator, device=device
            )
        elif kwarg.kind == "number":
            gain = round(float(torch.rand((), generator=generator)), 3)
        elif kwarg.kind == "listed":
            gain = [round(gain, 3) for gain in torch.rand(step.batch_size, generator=generator).tolist()]
        elif kwarg.kind in ("turned", "rows", "whole"):
            shape = _ruled_shape(kwarg, model, step.batch_size)
            gain = torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)
        elif kwarg.kind == "objects":
            gain = _objects(step.batch_size, generator)
        if kwarg.kind in ("tensor", "whole"):
            gain.requires_grad_(differentiated)
        kwargs.setdefault(kwarg.stage, {})[kwarg.name] = gain
    sizes = split_sizes(step.batch_size, m)
    target = (
        exact.targets_of(main)
        if model.is_exact
        else _target(case, leading, sizes, _generator(case, step_index, "target"), step_index=step_index)
    ).to(device)
    return assemble(
        args=tuple(args),
        kwargs=kwargs,
        target=target,
        loss_kwargs=_loss_kwargs(case.loss, target),
        batch_dim=model.batch_dim,
        num_microbatches=m,
        rules=kwarg_rules(case),
    )


def _ruled_shape(kwarg: Kwarg, model: Model, batch_size: int) -> tuple[int, int]:
    """The shape of a tensor with a split rule of its own, before it is split."""
    if kwarg.kind == "whole":
        return batch_size, model.width
    square = kwarg.kind == "rows" or kwarg.stage in stages_given(model, "rows")
    return batch_size if square else 2, batch_size


def assemble(
    *,
    args: tuple[Any, ...],
    kwargs: Mapping[int, Mapping[str, Any]],
    target: Any,
    loss_kwargs: Mapping[str, Any],
    batch_dim: int,
    num_microbatches: int,
    rules: Mapping[int, Mapping[str, SplitRule]] | None = None,
) -> Batch:
    """Split everything into microbatches and return a `Batch`; `rules` are those of `kwarg_rules`."""
    rules = rules or {}

    def cut(value: Any, rule: SplitRule | None = None) -> list[Any]:
        match rule:
            case Whole():
                return [value] * num_microbatches
            case CustomSplit(function):
                return list(function(value, split_sizes(target.shape[batch_dim], num_microbatches)))
        dim = batch_dim if rule is None else rule.dim
        return split(value, num_microbatches=num_microbatches, batch_dim=dim)

    cut_args, cut_target = [cut(arg) for arg in args], cut(target)
    cut_kwargs = {
        s: {name: cut(value, rules.get(s, {}).get(name)) for name, value in own.items()}
        for s, own in kwargs.items()
    }
    return Batch(
        args=args,
        kwargs=kwargs,
        target=target,
        loss_kwargs=loss_kwargs,
        batch_dim=batch_dim,
        num_microbatches=num_microbatches,
        microbatches=tuple(
            Microbatch(
                args=tuple(arg[k] for arg in cut_args),
                kwargs={s: {name: value[k] for name, value in own.items()} for s, own in cut_kwargs.items()},
                target=cut_target[k],
            )
            for k in range(num_microbatches)
        ),
        kwarg_rules=rules,
    )


def reassembled(
    batch: Batch,
    *,
    args: tuple[Any, ...],
    target: Any,
    kwargs: Mapping[int, Mapping[str, Any]] | None = None,
) -> Batch:
    """The batch with new inputs, a new target and, if given, new keyword arguments, split again."""
    return assemble(
        args=args,
        kwargs=batch.kwargs if kwargs is None else kwargs,
        target=target,
        loss_kwargs=batch.loss_kwargs,
        batch_dim=batch.batch_dim,
        num_microbatches=batch.num_microbatches,
        rules=batch.kwarg_rules,
    )


def kwarg_gradients(batch: Batch, *, stages: Iterable[int]) -> dict[int, dict[str, Tensor | None]]:
    """The gradients of the keyword arguments that require one, by stage and name."""
    found = {
        s: {
            name: value.grad
            for name, value in batch.kwargs.get(s, {}).items()
            if isinstance(value, Tensor) and value.requires_grad
        }
        for s in stages
    }
    return {s: own for s, own in found.items() if own}


def decoy_of(value: Any) -> Any:
    """A wrong value of the same shape and dtype: NaN for floating dtypes, other small integers, flipped masks."""
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point():
        return torch.full_like(value, float("nan"), requires_grad=value.requires_grad)
    if value.dtype == torch.bool:
        return ~value
    return torch.where(value > 0, 0, 1).to(value.dtype)


def _mean_or_sum(values: Tensor, spec: LossSpec) -> Tensor:
    return values.mean() if spec.reduction == "mean" else values.sum()


def tied_names(case: Case) -> tuple[dict[int, str], ...]:
    """The parameters that several stages share, in the form of `Plan.tied`."""
    return (dict.fromkeys(case.model.tied, "tied"),) if case.model.tied else ()


def loaded_state(case: Case, step_index: int) -> dict[int, dict[str, Tensor]]:
    """The state that program step `step_index` loads, by stage and name: that of a model with another seed.

    Its buffers are moved, since those of a new model do not depend on the seed.
    """
    other = structs.replace(case, seed=seed_of(case.seed, step_index, "load"))
    built = module_state({s: build_stage(other, s) for s in range(case.num_stages)})
    return {s: buffers_moved(state, by=_LOADED_BUFFERS_MOVE) for s, state in built.items()}


def buffers_moved(state: Mapping[str, Tensor], *, by: float) -> dict[str, Tensor]:
    """The state with 1 added to counts, and `by` to other buffers, so that variances stay positive."""

    def moved(value: Tensor) -> Tensor:
        if isinstance(value, nn.Parameter) or value.dtype == torch.bool:
            return value
        return value + (by if value.is_floating_point() else 1)

    return {name: moved(value) for name, value in state.items()}


def autocast_dtype(case: Case) -> torch.dtype | None:
    """The dtype of automatic mixed precision in the steps that run the pipeline; None if they run without."""
    return None if case.autocast is None else getattr(torch, case.autocast)


def autocast_in(dtype: torch.dtype | None, *, device: torch.device | str) -> AbstractContextManager[object]:
    """The context for a step: automatic mixed precision, if there is a dtype for it."""
    return nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype=dtype)


def loss_of(case: Case, *, last: Callable[[], nn.Module] | None = None) -> Loss:
    """The loss of one microbatch, in the form of the contract; `last` returns the last stage, which a readout needs."""
    spec, output_kind, further = case.loss, case.model.output, bool(case.model.merged)
    early = "" if case.model.split is None else case.model.split.early

    def loss(output: Any, target: Tensor, *, scale: float = 1.0) -> Tensor:
        main, extra = output, None
        if further:
            main = output[0]
        elif early:
            # it can be lost, which is judged
            main, beside = (output, None) if isinstance(output, Tensor) else output
            extra = beside if early == "added" else None
        elif output_kind != "tensor":
            main, extra = _unpacked(output, output_kind)
        if case.model.readout:
            assert last is not None
            main = functional.linear(main, last().get_parameter("readout"))
        if spec.in_place:
            target.mul_(0.5)
        if spec.kind == "mse":
            value = _mean_or_sum((main - target) ** 2, spec)
        else:
            flat = main.reshape(-1, main.shape[-1])
            value = functional.cross_entropy(
                flat, target.reshape(-1), ignore_index=IGNORED, reduction=spec.reduction
            )
        if extra is not None:
            value = value + 0.25 * _mean_or_sum(extra, spec)
        return value * scale

    return Loss(function=loss, reduction=spec.reduction)


def _unpacked(output: Any, kind: Literal["tuple1", "tuple", "dict"]) -> tuple[Tensor, Tensor | None]:
    """The result, and its square if it has one, of what a last stage returns.

    Raises:
        TypeError: the loss function is given something else. `output[0]` of a bare tensor would be its first sample.
    """
    match kind, output:
        case "tuple1", (Tensor() as main,) if isinstance(output, tuple):
            return main, None
        case "tuple", (Tensor() as main, Tensor() as extra) if isinstance(output, tuple):
            return main, extra
        case "dict", {"result": Tensor() as main, "square": Tensor() as extra}:
            return main, extra
    returned = {"tuple1": "a tuple of one tensor", "tuple": "a tuple of two tensors", "dict": "a dict"}[kind]
    raise TypeError(
        f"the last stage returns {returned}; the loss function is given a {type(output).__name__}"
    )


def specs_of(case: Case, values: Iterable[Tensor]) -> tuple[TensorSpec, ...]:
    """The specs of tensors at a boundary."""
    return tuple(
        TensorSpec(
            shape=tuple(value.shape),
            dtype=value.dtype,
            requires_grad=value.requires_grad,
            batch_dim=case.model.batch_dim,
        )
        for value in values
    )


def passed_on(case: Case, *, stages: int) -> list[tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]:
    """The inputs and outputs of each of the first `stages` for the first microbatch of the first run."""
    index = next(i for i, step in enumerate(case.program) if isinstance(step, Train | Eval))
    micro = make_batch(case, index).microbatches[0]
    values: tuple[Any, ...] = micro.args
    found = []
    with torch.random.fork_rng(devices=[]), autocast_in(autocast_dtype(case), device="cpu"):
        for s in range(stages):
            output = build_stage(case, s)(*values, **micro.kwargs.get(s, {}))
            given = tuple(output) if isinstance(output, tuple | list) else (output,)
            found.append((specs_of(case, values), specs_of(case, given)))
            values = tuple(value.detach().requires_grad_(value.requires_grad) for value in given)
    return found


def boundaries_of(case: Case) -> tuple[Boundary, ...]:
    """The boundaries between neighbouring stages for the first microbatch of the first run."""
    return tuple(
        Boundary(producer=s, consumer=s + 1, tensors=given)
        for s, (_, given) in enumerate(passed_on(case, stages=case.num_stages - 1))
    )
