"""What a step of torch's schedules is given: a whole batch, or one that the caller has split."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pipeconform.adapter import Along, Batch, Plan

__all__ = ["split_dims", "step_arguments"]


def split_dims(plan: Plan, stages: Iterable[int]) -> dict[str, int]:
    """The dimensions in which keyword arguments of these stages are split, of those that are split by a rule."""
    rules = {name: rule for s in stages for name, rule in plan.kwarg_rules.get(s, {}).items()}
    return {name: rule.dim for name, rule in rules.items() if isinstance(rule, Along)}


def step_arguments(
    batch: Batch, *, owned: Collection[int], targets: bool, batch_dim: int
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The positional and the keyword arguments of ``step()`` and ``eval()`` on a rank with the stages `owned`.

    Of a batch with a source, all ranks say how many microbatches there are; `targets` says whether to give targets.
    """
    if batch.source is None:
        whole = {"target": batch.target.movedim(batch_dim, 0)} if targets else {}  # split in dimension 0
        return batch.args if 0 in owned else (), {**_kwargs(batch.kwargs, owned), **whole}
    taken = tuple(itertools.islice(batch.source, batch.num_microbatches))
    split: dict[str, Any] = {"kwarg_mbs": [_kwargs(one.kwargs, owned) for one in taken]}
    if 0 in owned:
        split["arg_mbs"] = [tuple(one.args) for one in taken]
    if targets:
        split["target_mbs"] = [one.target.movedim(batch_dim, 0) for one in taken]
    return (), split


def _kwargs(kwargs: Mapping[int, Mapping[str, Any]], owned: Collection[int]) -> dict[str, Any]:
    return {name: value for s in owned for name, value in kwargs.get(s, {}).items()}
