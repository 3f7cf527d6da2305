"""The mean of the replicas' gradients in the oracle: one value, or every right way to compute it.

A wrapper chooses the order in which it adds up replicas, buckets and passes, and whether it divides before or after.
Under running error analysis the sums are therefore computed in the dtypes in which a wrapper may compute them, term by
term, so that the bound of their sum holds for every order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.wrappers.doubt import Doubt

__all__ = ["added", "mean_of", "mean_with_earlier"]


def added(case: WrapperCase, sum_before: Tensor | None, own: Tensor, *, doubt: Doubt) -> Tensor:
    """The sum of one rank's gradients over backward passes, in its parameter's dtype.

    A wrapper may add them up in the coarsest of the dtypes in which the case computes and reduces.
    """
    if sum_before is None:
        return own
    if doubt.analysis is None:
        return sum_before + own
    options = case.options
    coarsest = max(
        (own.dtype, *map(_dtype, filter(None, (options.param_dtype, options.reduce_dtype)))),
        key=lambda dtype: torch.finfo(dtype).eps,
    )
    return (sum_before.to(coarsest) + own.to(coarsest)).to(own.dtype)


def mean_of(case: WrapperCase, parts: Sequence[Tensor], *, factor: float, doubt: Doubt) -> Tensor:
    """The replicas' gradients, added up and multiplied by `factor`, in the dtype in which the case reduces.

    Without an analysis, the sum is exact to that dtype, because its order is up to the wrapper.
    """
    dtype = _reduced_in(case, parts[0].dtype)
    if doubt.analysis is None:
        options = case.options
        last = _dtype(options.reduce_dtype) if options.reduce_dtype else parts[0].dtype
        return (torch.stack([part.double() for part in parts]).sum(0) * factor).to(last).to(parts[0].dtype)
    total = parts[0].to(dtype)
    for part in parts[1:]:
        total = total + part.to(dtype)
    return (total * factor).to(parts[0].dtype)


def mean_with_earlier(
    case: WrapperCase, mean: Tensor | None, earlier: Tensor | None, *, ranks: int, doubt: Doubt
) -> Tensor | None:
    """The mean and an earlier one that was kept.

    A wrapper may reduce the earlier one again, with every replica's new gradient added to it: as many terms as there
    are replicas, each divided by their number.
    """
    if mean is None or earlier is None:
        return mean if earlier is None else earlier
    if doubt.analysis is None:
        return earlier + mean
    dtype = _reduced_in(case, mean.dtype)
    share, total = (earlier.to(dtype) / ranks), mean.to(dtype)
    for _ in range(ranks):
        total = total + share
    return total.to(mean.dtype)


def _reduced_in(case: WrapperCase, own: torch.dtype) -> torch.dtype:
    """The dtype in which a case reduces gradients of a parameter whose dtype is `own`."""
    options = case.options
    named = case.hook if case.hook in ("float16", "bfloat16") else options.reduce_dtype or options.param_dtype
    return _dtype(named) if named else own


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
