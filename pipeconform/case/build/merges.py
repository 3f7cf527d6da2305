"""The further outputs of a last stage, and how microbatches of them are merged.

They are listed in `Model.merged`; each kind has a merge rule of its own, see `rules_of`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeconform.adapter import Along, CustomMerge, MergeRule, Whole
from pipeconform.case.case import Case, MergedKind

__all__ = ["made", "merged", "rules_of"]


def made(kind: MergedKind, x: Tensor, *, parameter: Tensor | None) -> Tensor:
    """One further output of a microbatch, computed from the main one ``[b, …]``.

    ``turned`` is ``[2, b]``; ``whole`` is ``[3]`` and the same for every microbatch; ``total`` is 0-d. ``parameter`` is
    the last stage's `parameter` itself, which the main output depends on, as a learned temperature is returned.
    """
    if kind == "parameter":
        assert parameter is not None, "a last stage with this output has the parameter"
        return parameter
    if kind == "whole":
        return torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype, device=x.device)
    sums = x.flatten(1).sum(1)
    return torch.stack([sums, sums * sums]) if kind == "turned" else sums.sum()


def rules_of(case: Case) -> tuple[MergeRule | None, ...]:
    """The merge rule of every output, None for the default; empty if all outputs have the default."""
    rules: dict[MergedKind, MergeRule] = {
        "turned": Along(1),
        "whole": Whole(),
        "parameter": Along(0),
        "total": CustomMerge(_discounted),
    }
    return (None, *(rules[kind] for kind in case.model.merged)) if case.model.merged else ()


def _discounted(merged: Tensor, value: Tensor) -> Tensor:
    """A merge that is not commutative and changes zero, so that a wrong order or start shows."""
    return merged * 0.5 + value + 1.0


def merged(rule: MergeRule | None, values: Sequence[Tensor], *, batch_dim: int) -> Tensor:
    """The batch's output from the outputs of its microbatches, in the batch's order."""
    match rule:
        case Whole():
            return values[0]
        case CustomMerge(function):
            total = values[0]
            for value in values[1:]:
                total = function(total, value)
            return total
    return torch.cat(list(values), dim=batch_dim if rule is None else rule.dim)
