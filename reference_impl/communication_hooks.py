"""Communication hooks: functions ``hook(state, bucket)`` that reduce a bucket of gradients.

A hook begins a reduction of ``bucket.buffer`` and returns a future of the result: the mean over the replicas, of the
same shape. The next buckets are computed meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from .gradient_buckets import Bucket

__all__ = ["Hook", "all_reduce_hook", "check_hook", "compress_hook"]

Hook = Callable[[Any, Bucket], "Future[Tensor]"]


def all_reduce_hook(group: ProcessGroup, bucket: Bucket) -> Future[Tensor]:
    """The mean by one all-reduce; `group` is the hook's state."""
    if bucket.sparse:
        summed = dist.all_reduce(bucket.buffer, group=group, async_op=True)
        return summed.get_future().then(lambda done: done.value()[0] / group.size())  # type: ignore[no-any-return]
    bucket.buffer.div_(group.size())  # before the sum, so that small floating types do not overflow
    return dist.all_reduce(bucket.buffer, group=group, async_op=True).get_future().then(_first)  # type: ignore[no-any-return]


def compress_hook(dtype: torch.dtype) -> Hook:
    """A hook that reduces in a smaller dtype such as ``torch.float16``; its state is the process group."""

    def hook(group: ProcessGroup, bucket: Bucket) -> Future[Tensor]:
        small = bucket.buffer.to(dtype).div_(group.size())
        work = dist.all_reduce(small, group=group, async_op=True)
        return work.get_future().then(lambda done: bucket.buffer.copy_(done.value()[0]))  # type: ignore[no-any-return]

    return hook


def check_hook(hook: Any) -> None:
    """Refuse an object that is no communication hook.

    Raises:
        TypeError: It cannot be called.
        ValueError: It takes other than two arguments, or is annotated otherwise.
    """
    if not callable(hook):
        raise TypeError(f"a communication hook is called as hook(state, bucket); {hook!r} cannot be called")
    found = inspect.signature(hook)
    taken = [one for one in found.parameters.values() if one.kind is not one.KEYWORD_ONLY]
    if len(taken) != 2:
        raise ValueError(f"a communication hook takes two arguments, (state, bucket); this one takes {found}")
    bucket = taken[1].annotation
    if bucket not in (inspect.Parameter.empty, Any, Bucket, "Bucket", "Any"):
        raise ValueError(f"a communication hook's second argument is a Bucket, not {bucket!r}")
    result = found.return_annotation
    if result not in (inspect.Signature.empty, Any, "Any") and "Future" not in str(result):
        raise ValueError(f"a communication hook returns a Future[Tensor], not {result!r}")


def _first(done: Future[list[Tensor]]) -> Tensor:
    return done.value()[0]
