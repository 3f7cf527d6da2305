"""What a last stage returns behind its main output, and how microbatches of it become the batch's.

Only `Model.merged` says so: each kind is merged in a way of its own, see `rules_of`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeconform.adapter import Along, CustomMerge, MergeRule, Whole
from pipeconform.case.case import Case, MergedKind

__all__ = ["made", "merged", "rules_of"]


def made(kind: MergedKind, x: Tensor) -> Tensor:
    """One further output of a microbatch, from its main one ``[b, …]``.

    ``turned`` is ``[2, b]``; ``whole`` ``[3]`` and the same for every microbatch; ``total`` 0-d.
    """
    if kind == "whole":
        return torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype, device=x.device)
    sums = x.flatten(1).sum(1)
    return torch.stack([sums, sums * sums]) if kind == "turned" else sums.sum()


def rules_of(case: Case) -> tuple[MergeRule | None, ...]:
    """Per output the rule of its merge, None where that is as usual; empty where all are."""
    rules: dict[MergedKind, MergeRule] = {
        "turned": Along(1),
        "whole": Whole(),
        "total": CustomMerge(_discounted),
    }
    return (None, *(rules[kind] for kind in case.model.merged)) if case.model.merged else ()


def _discounted(merged: Tensor, value: Tensor) -> Tensor:
    """Neither commutative nor without effect on zero: order and beginning show."""
    return merged * 0.5 + value + 1.0


def merged(rule: MergeRule | None, values: Sequence[Tensor], *, batch_dim: int) -> Tensor:
    """The batch's output from those of its microbatches, in the batch's order."""
    match rule:
        case Whole():
            return values[0]
        case CustomMerge(function):
            total = values[0]
            for value in values[1:]:
                total = function(total, value)
            return total
    return torch.cat(list(values), dim=batch_dim if rule is None else rule.dim)
