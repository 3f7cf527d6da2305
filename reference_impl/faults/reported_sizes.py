"""Defects of real engines that users reported, reproduced: in sizes, buffers and the order of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Mode, StepResult
from pipeconform.schedule import Action

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..link import Failure, Link
from ..microbatches import split
from ..runtime import Step, Work, Yield
from .fault import breaks
from .wire import _each_tensor


@breaks("LIF-1", status="error", source="https://github.com/pytorch/pytorch/issues/162822", also=("SCH-9",))
class EvaluatedFirst(ReferencePipeline):
    """After an evaluation nothing can be trained.

    The first step prepares the backward, and this one was an evaluation.
    """

    prepared: bool | None = None

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if self.prepared is None:
            self.prepared = mode is Mode.TRAIN
        if mode is Mode.TRAIN and not self.prepared:
            raise RuntimeError("the buffers for gradients were not prepared")
        return super().run(mode, batch)


@breaks("LIF-1", status="error", source="https://github.com/deepspeedai/DeepSpeed/pull/6484")
class EvaluationCountKept(ReferencePipeline):
    """Evaluation runs as many microbatches as training did, not as many as it should; its batch may be too small."""

    trained: int | None = None

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if mode is Mode.TRAIN:
            self.trained = batch.num_microbatches
        elif self.trained is not None:
            batch = replace(batch, num_microbatches=self.trained)
        return super().run(mode, batch)


@breaks(
    "SCH-6",
    also=("FWD-1",),
    status="hung",
    tells="no rank makes progress",
    source="https://github.com/pytorch/torchtitan/issues/775",
)
class FewHang(Step):
    """With fewer microbatches than ranks the first rank waits forever.

    The warm-up has as many forwards as there are ranks, and waits for one that never comes.
    """

    def run(self, actions: Sequence[Action]) -> Yield:
        done = super().run(actions)
        ranks = len(set(self.placement))
        if self.position == 0 and ranks > 1 and len(self.work.targets) < ranks:
            self.link.receive(source=1)
        return done


class _SizedLink(Link):
    """Records the first size of the batch dimension that came from each sender."""

    batch_dim = 0
    rows: dict[int, int]

    def fit(self, leaf: Tensor, rows: int) -> Tensor:
        """The tensor that is delivered if a buffer has another number of rows than the message."""
        raise NotImplementedError

    def receive(self, *, source: int) -> Any:
        value = super().receive(source=source)
        if isinstance(value, Failure):
            return value

        def fitted(leaf: Tensor) -> Tensor:
            if leaf.ndim <= self.batch_dim:
                return leaf
            rows = self.rows.setdefault(source, leaf.shape[self.batch_dim])
            return leaf if leaf.shape[self.batch_dim] == rows else self.fit(leaf, rows)

        return _each_tensor(fitted, value)


class _RefusingLink(_SizedLink):
    def fit(self, leaf: Tensor, rows: int) -> Tensor:
        raise RuntimeError(f"mismatch in shape: {tuple(leaf.shape)} for a buffer of {rows} rows")


class _RepeatingLink(_SizedLink):
    def fit(self, leaf: Tensor, rows: int) -> Tensor:
        there = leaf.shape[self.batch_dim]
        return leaf.index_select(self.batch_dim, torch.arange(rows, device=leaf.device) % there)


class _SizedPipeline(ReferencePipeline):
    """Keeps the first sizes from one step to the next."""

    link_type: ClassVar[type[Link]] = _RefusingLink
    rows: dict[int, int]

    def make_link(self) -> Link:
        link = super().make_link()
        assert isinstance(link, _SizedLink)
        if not hasattr(self, "rows"):
            self.rows = {}
        link.rows, link.batch_dim = self.rows, self.plan.batch_dim
        return link


@breaks("LIF-1", status="error", source="https://github.com/hpcaitech/ColossalAI/issues/5940")
class FirstSizesKept(ReferenceAdapter):
    """A step of another size than the first is an error, because buffers keep the first step's sizes."""

    pipeline = _SizedPipeline


@breaks("FWD-2", status="error", source="https://github.com/pytorch/pytorch/issues/126600")
class UnevenBuffers(_SizedPipeline):
    """Microbatches shorter than a step's first are filled up with what was in the buffer."""

    link_type = _RepeatingLink

    def make_link(self) -> Link:
        self.rows = {}
        return super().make_link()


@breaks("LIF-1", status="error", source="https://github.com/deepspeedai/DeepSpeed/issues/3045")
class EvaluationSizeKept(_SizedPipeline):
    """A step of another size than the first gets activations of the first's size."""

    link_type = _RepeatingLink


def _chunks(batch_size: int, num_microbatches: int) -> list[int]:
    """The sizes of ``torch.chunk``: equal parts as long as they last, perhaps fewer than asked for."""
    size = -(-batch_size // num_microbatches)
    return [min(size, batch_size - begin) for begin in range(0, batch_size, size)]


@breaks("FWD-2", status="error", source="https://github.com/pytorch/PiPPy/pull/192")
class FewerChunks(ReferencePipeline):
    """Batches are cut by torch.chunk, which may make fewer parts than it is asked for."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work, dim = super().make_work(mode, batch), batch.batch_dim
        sizes = _chunks(sum(target.shape[dim] for target in work.targets), batch.num_microbatches)
        cut: Callable[[Any], list[Any]] = lambda tree: split(tree, sizes=sizes, batch_dim=dim)  # noqa: E731
        inputs = [tuple(part) for part in cut(tuple(map(_cut_off, batch.args)))] if work.inputs else ()
        kwargs = {s: cut(dict(batch.kwargs[s])) for s in work.kwargs}
        return replace(work, inputs=inputs, kwargs=kwargs, targets=cut(batch.target))


def _cut_off(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


@breaks(
    "FWD-4",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/deepspeedai/DeepSpeed/issues/969",
)
class ThirdTensorDropped(Link):
    """If a boundary has more than two tensors, the rest is dropped."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(value[:2] if isinstance(value, tuple) else value, to=to)


@breaks("FWD-1", status="error", source="https://github.com/pytorch/PiPPy/issues/1054")
class BatchOfOneSqueezed(Link):
    """A microbatch of one sample loses its batch dimension."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(_each_tensor(lambda leaf: leaf.squeeze(0), value), to=to)
