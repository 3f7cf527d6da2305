"""What the pipeline needs if a plan has a whole model instead of stages.

`split_as_planned` passes the plan's way to split the model to `tracing`. `Ties` adds up the gradients
of a parameter that stages of several ranks use: every holder sends its part to all others, at the end of the
step, and adds all parts in the order of the ranks, so that all of them have the same sum to the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from pipeconform.adapter import Boundary, Plan, Split, TensorSpec

from .errors import PeerError, PipelineError
from .link import Failure, Link
from .tracing import PipeInfo, Point, TracedPipe, balanced, split_model, stage_boundary


def split_as_planned(plan: Plan, split: Split) -> TracedPipe:
    """Split the plan's model.

    Raises:
        SplitError: It cannot be split as asked.
    """
    args, kwargs = split.example()
    num_stages = len(plan.stages)
    if split.by == "annotations":
        return split_model(split.annotated(stage_boundary), num_stages=num_stages, args=args, kwargs=kwargs)
    if split.by == "policy":
        policy = balanced(num_stages)
        return split_model(plan.model(), num_stages=num_stages, args=args, kwargs=kwargs, policy=policy)
    points = [Point(one.module, after=one.after) for one in split.points]
    return split_model(plan.model(), num_stages=num_stages, args=args, kwargs=kwargs, points=points)


def boundaries_of(info: PipeInfo, stages: Sequence[int], *, batch_dim: int) -> tuple[Boundary, ...]:
    """What these stages hand on, in the contract's types; the last stage hands on nothing."""
    return tuple(
        Boundary(
            producer=s,
            consumer=s + 1,
            tensors=tuple(
                TensorSpec(
                    shape=one.shape, dtype=one.dtype, requires_grad=one.requires_grad, batch_dim=batch_dim
                )
                for one in info.outputs[s].tensors
            ),
        )
        for s in stages
        if s < info.num_stages - 1
    )


def share(shared: Sequence[Mapping[int, str]], modules: Mapping[int, nn.Module]) -> None:
    """Let stages of this rank that share a parameter hold one object: autograd then adds up by itself."""
    for where in shared:
        own = [s for s in where if s in modules]
        for s in own[1:]:
            module, name = modules[s], where[s]
            path, _, last = name.rpartition(".")
            setattr(module.get_submodule(path), last, modules[own[0]].get_parameter(where[own[0]]))


def copies(shared: Sequence[Mapping[int, str]], modules: Mapping[int, nn.Module]) -> set[nn.Parameter]:
    """This rank's parameters whose first holder is a stage of another rank, which counts them in norms."""
    return {
        modules[s].get_parameter(name)
        for where in shared
        if min(where) not in modules
        for s, name in where.items()
        if s in modules
    }


class Ties:
    """This rank's parameters that stages of other ranks use, too; `position` is its place in the pipeline.

    `shared` holds for every parameter its name in each of its stages. Stages of one rank hold it together.
    """

    def __init__(
        self,
        shared: Sequence[Mapping[int, str]],
        modules: Mapping[int, nn.Module],
        *,
        placement: Sequence[int],
        position: int,
    ) -> None:
        self._position = position
        self._tied: list[tuple[nn.Parameter, list[int]]] = []
        for where in shared:
            holders = sorted({placement[s] for s in where})
            own = [s for s in where if s in modules]
            if own and len(holders) > 1:
                self._tied.append((modules[own[0]].get_parameter(where[own[0]]), holders))

    @contextmanager
    def step(self, link: Link) -> Iterator[None]:
        """Surround a training step: afterwards every holder has the sum, added to what was there before.

        Raises:
            PeerError: A holder failed; this rank, if it did not, has nothing added.
        """
        earlier = [parameter.grad for parameter, _ in self._tied]
        for parameter, _ in self._tied:
            parameter.grad = None
        try:
            yield
            self._exchange(link, failure=None)
        except PipelineError as error:
            if not isinstance(error, _TieError):
                self._exchange(link, failure=str(error))
            raise
        finally:
            for (parameter, _), before in zip(self._tied, earlier, strict=True):
                if before is not None:
                    parameter.grad = before if parameter.grad is None else before + parameter.grad

    def _exchange(self, link: Link, *, failure: str | None) -> None:
        """Send and receive every part; a failure travels in a part's place, so that no rank waits in vain.

        Backends that run the messages of a pair in one order would wait forever if both sent first. So all ranks take
        the pairs in the same order, and the lower end of a pair sends first, as in `Link.warm_up`.
        """
        heard: str | None = None
        for parameter, holders in self._tied:
            own = parameter.grad
            parts: dict[int, Tensor | None] = {self._position: own}
            for low, high in itertools.combinations(holders, 2):
                if self._position not in (low, high):
                    continue
                peer = high if self._position == low else low
                if self._position == low:
                    _send(link, own, failure, to=peer)
                found = link.receive(source=peer)
                if self._position == high:
                    _send(link, own, failure, to=peer)
                if isinstance(found, Failure):
                    heard = found.text
                else:
                    (parts[peer],) = found
            if heard is None:
                parameter.grad = _sum(parts[holder] for holder in holders)
        link.wait()
        if heard is not None and failure is None:
            raise _TieError(heard)


class _TieError(PeerError):
    """A holder of a shared parameter failed after this rank's own part of the step had ended."""


def _send(link: Link, part: Tensor | None, failure: str | None, *, to: int) -> None:
    if failure is None:
        link.send([part], to=to)
    else:
        link.send_failure(failure, to=to)


def _sum(parts: Iterable[Tensor | None]) -> Tensor | None:
    total: Tensor | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total
