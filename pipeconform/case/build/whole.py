"""The whole model of a case for a front end, and how the front end must split it.

The model is plain torch code, without recorders or process state. Stage s of the case is the submodule ``stages.<s>``
with blocks ``stages.<s>.blocks.<b>`` and the parameters of `build_stage`. Between two consecutive blocks, at most one
value passes from all earlier to all later code, unless the case has a skip connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec import structs
from torch import Tensor, nn

from pipeconform.adapter import Split, SplitPoint
from pipeconform.case.build import data
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Case
from pipeconform.case.seeds import seed_of, seed_process

__all__ = [
    "WholeModel",
    "aliases_of",
    "as_traced",
    "build_whole",
    "cuts_are_known",
    "parts_are_known",
    "split_of",
    "whole_kwargs",
]


class _Part(nn.Module):
    """The computations of one stage; with `early`, the mean of each sample of its result stands beside it."""

    def __init__(
        self,
        blocks: nn.ModuleList,
        *,
        reused: bool,
        tensor_gain: bool,
        early: bool = False,
        mark: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.early = early
        # the kind of gain is known here, so that the model's code does not test types
        self.blocks, self.reused, self.tensor_gain = blocks, reused, tensor_gain
        self.tie: nn.Module | None = None
        self._mark = mark

    def forward(self, x: Tensor, skipped: Tensor | None = None, gain: Any = None) -> Any:
        if gain is not None:
            x = x * (1.0 + (gain.unsqueeze(-1) if self.tensor_gain else gain))
        if skipped is not None:
            x = x + 0.5 * skipped
        for position, block in enumerate(self.blocks):
            if self.reused and not position:
                x = torch.tanh(block(x))
            x = block(x) * 1.0  # passes no views on, which are a subject of their own
        x = x if self.tie is None else self.tie(x) * 1.0
        # what is computed behind a mark, or behind the call of this module, is the next stage's
        result = (x, x.flatten(1).mean(1)) if self.early else x
        if self._mark is not None:
            self._mark()
        return result


class WholeModel(nn.Module):
    """The whole model: ``forward(x, **gains)`` calls `mark` where stages end."""

    def __init__(self, case: Case, mark: Callable[[], None] | None = None) -> None:
        super().__init__()
        split = case.model.split
        assert split is not None
        blocks = [build_stage(case, s).blocks for s in range(case.num_stages)]
        tensors = {kwarg.stage for kwarg in case.model.kwargs if kwarg.kind == "tensor"}
        self.stages = nn.ModuleList(
            _Part(
                own,
                reused=split.reused,
                tensor_gain=s in tensors,
                early=bool(split.early) and s == case.num_stages - 2,
                mark=mark if split.inside and s < case.num_stages - 1 else None,
            )
            for s, own in enumerate(blocks)
        )
        if split.tied:
            self.stages[0].tie = self.stages[-1].tie = _linear(case, "tie")
        if split.wrong == "uncalled":
            self.spare = _linear(case, "spare")
        self._mark = None if split.inside else mark
        self._skip, self._branches = split.skip, split.wrong == "branch"

    def forward(self, x: Tensor, **gains: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Run the whole model; ``gain_<s>`` is the keyword argument that stage s uses.

        Returns ``[B, W]`` or ``[B, S, W]``, and beside it ``[B]`` where an early output is asked for.
        """
        first, early, last = None, None, len(self.stages) - 1
        for s, stage in enumerate(self.stages):
            x = stage(x, first if self._skip and s == last else None, gains.get(f"gain_{s}"))
            if stage.early:
                x, early = x
            first = x if first is None else first
            if self._branches and not s and bool(x.flatten()[0] > 0):
                x = torch.tanh(x)
            if self._mark is not None and s < last:
                self._mark()
        return x if early is None else (x, early)


def _linear(case: Case, role: str) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        seed_process(seed_of(case.seed, role))
        return nn.Linear(case.model.width, case.model.width, dtype=getattr(torch, case.model.dtype))


def build_whole(case: Case, mark: Callable[[], None] | None = None) -> WholeModel:
    """The whole model on the CPU with its initial parameters; two calls give equal modules."""
    return WholeModel(case, mark)


def aliases_of(case: Case) -> dict[str, str]:
    """Maps every name of a parameter or buffer of the whole model to the first name of the same tensor."""
    model, first = build_whole(case), dict[int, str]()
    found = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            found[name] = first.setdefault(id(tensor), name)
    return found


def whole_kwargs(kwargs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The keyword arguments of the whole model, collected from those of the stages."""
    return {name: value for own in kwargs.values() for name, value in own.items()}


def cuts_are_known(case: Case) -> bool:
    """Whether a front end must make the stages of the case, with one tensor between neighbours.

    A policy may cut anywhere, and a skip connection may pass through every stage between, or through none.
    """
    split = case.model.split
    plain = split is not None and not (split.skip or split.early or split.wrong)
    return split is not None and split.by != "policy" and plain


def parts_are_known(case: Case) -> bool:
    """Whether a front end must make stages with the parameters of the case's stages."""
    split = case.model.split
    return split is not None and split.by != "policy" and not split.wrong


def as_traced(case: Case) -> Case:
    """The case with the traced example's shapes in every run."""
    split = case.model.split
    if split is None:
        return case
    plain = structs.replace(split, longer=False, shorter_example=False)
    return structs.replace(case, model=structs.replace(case.model, split=plain))


def split_of(
    case: Case, annotated: Callable[[Callable[[], None]], nn.Module] | None = None, *, seed: int | None = None
) -> Split | None:
    """The plan's `Split` for a front end; None if the case gives stages.

    `annotated` builds the whole model instead of `build_whole`; `seed` replaces the case's seed for the tensors of the
    example.
    """
    split = case.model.split
    if split is None:
        return None
    stages = range(case.num_stages)
    names = [f"stages.{s - 1 if split.after else s}" for s in stages[1:]]
    wrong = {
        "unknown": f"stages.{case.num_stages + 6}",
        "uncalled": "spare",
        "empty": f"stages.{stages[-1] if split.after else 0}",
    }
    if split.wrong in wrong:
        names[-1:] = [wrong[split.wrong]]
    units = tuple(
        f"stages.{s}.blocks.{b}"
        for s, stage in enumerate(case.model.stages)
        for b in range(len(stage.blocks))
    )

    def example() -> tuple[tuple[Any, ...], dict[str, Any]]:
        first = next(i for i, step in enumerate(case.program) if step is case.runs[0])
        traced = as_traced(case)
        micro = data.make_batch(traced, first).microbatches[0]
        drawn = (
            micro
            if seed is None
            else data.make_batch(structs.replace(traced, seed=seed), first).microbatches[0]
        )
        kwargs = whole_kwargs(
            micro.kwargs
        )  # numbers become part of what is traced: they are the same everywhere
        tensors = {
            name: value for name, value in whole_kwargs(drawn.kwargs).items() if isinstance(value, Tensor)
        }
        return tuple(arg.detach() for arg in drawn.args), {**kwargs, **tensors}

    return Split(
        by=split.by,
        annotated=annotated or (lambda mark: build_whole(case, mark)),
        points=tuple(SplitPoint(name, after=split.after) for name in names) if split.by == "points" else (),
        units=units,
        example=example,
    )
