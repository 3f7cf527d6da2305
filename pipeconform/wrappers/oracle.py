"""The expected values: unwrapped modules, one per replica, each with its own data, and the mean of their gradients.

Every step begins with the state that the ranks showed, so that each step is judged by itself and rounding does not
accumulate over steps; only an unbroken training goes on from its own values.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.case.wrapper_case import Pass, WrapperCase
from pipeconform.observe.array import Array
from pipeconform.wrappers.doubt import Doubt
from pipeconform.wrappers.groups import group_of
from pipeconform.wrappers.modules import batch_of, begun, objective, skeleton_of, tensors_in
from pipeconform.wrappers.observation import Expected, Gradients, PassExpected, Question
from pipeconform.wrappers.precision import run_in
from pipeconform.wrappers.reduction import added, mean_of, mean_with_earlier
from pipeconform.wrappers.references import agent_for
from pipeconform.wrappers.sharded_training import EPS
from pipeconform.wrappers.special import LR

__all__ = ["expected_of"]

_Sums = dict[str, Tensor | None]
_BETAS = (0.9, 0.999)  # Adam's defaults in torch


def expected_of(question: Question, *, device_type: str = "cpu") -> Expected:
    """The answer to a question about ranks on such a device; it is computed on the CPU."""
    doubt = Doubt.of(question.case, device_type=device_type) if question.bounded else Doubt()
    with agent_for(question.case), doubt.analysis or nullcontext():
        return _expected(question, doubt)


def _expected(question: Question, doubt: Doubt) -> Expected:
    case = question.case
    steps, after, after_bounds = [], [], []
    with doubt.aside():
        built = [begun(case, rank=rank) for rank in range(case.ranks)]
        initial = tuple(doubt.arrays(_named(module)) for module in built)
    replicas = _Replicas(case, doubt)
    befores = [initial, *[None] * (len(case.steps) - 1)] if question.unbroken else question.before
    for index, (step, before) in enumerate(
        zip(case.steps, befores, strict=False)
    ):  # the question has either all steps or none
        if step.zero != "keep":
            replicas.clear(zeros=step.zero == "zeros")
        if before is not None:
            replicas.load(index, before)
        steps.append(tuple(replicas.run(index, number, one) for number, one in enumerate(step.passes)))
        ended = replicas.stepped(skipped=step.overflow is not None)
        after.append({rank: doubt.arrays(state) for rank, state in ended.items()})
        after_bounds.append({rank: doubt.bounds(state) for rank, state in ended.items()})
    kept = [p for n, p in built[0].named_parameters() if n not in case.options.ignored and p.requires_grad]
    return Expected(
        initial=initial,
        parameters=tuple(name for name, _ in built[0].named_parameters()),
        names=tuple(built[0].state_dict()),
        trained=sum(p.numel() for p in kept),
        steps=tuple(steps),
        after=tuple(after),
        after_bounds=tuple(after_bounds),
    )


class _Replicas:
    """Unwrapped modules for all ranks, with the gradients that replicas kept in step would have."""

    def __init__(self, case: WrapperCase, doubt: Doubt) -> None:
        self.case, self.doubt = case, doubt
        self.modules: dict[int, nn.Module] = {}
        self.reduced: dict[int, _Sums] = {rank: {} for rank in range(case.ranks)}
        self.local: dict[int, _Sums] = {rank: {} for rank in range(case.ranks)}
        self.moments: dict[tuple[int, str], tuple[int, Tensor, Tensor]] = {}
        """Adam's state by rank and parameter: its number of steps and its two running means."""

    def clear(self, *, zeros: bool) -> None:
        for rank in range(self.case.ranks):
            kept: _Sums = {n: torch.zeros_like(g) for n, g in self.reduced[rank].items() if g is not None}
            self.reduced[rank] = kept if zeros else {}
            self.local[rank] = {}

    def load(self, step: int, before: tuple[dict[str, Array], ...]) -> None:
        self.modules = {}
        for rank in self.case.present(step):
            with self.doubt.aside(), torch.no_grad():
                module = begun(self.case, rank=rank)
                for name, tensor in _named(module).items():
                    tensor.copy_(before[rank][name].tensor())
                for part in module.modules():
                    if isinstance(part, nn.Embedding):
                        part.sparse = False  # the same gradient, of which all rows are there
            self.modules[rank] = module

    def run(self, step: int, number: int, one: Pass) -> PassExpected:
        outputs: dict[int, Any] = {}
        for forward in range(one.forwards):
            self._synchronise_buffers(one, after=False)
            for rank, module in self.modules.items():
                with self.doubt.aside():
                    batch = batch_of(self.case, rank=rank, step=step, index=number, forward=forward)
                module.zero_grad()
                with self.doubt.module():
                    uses = [one.uses[rank]] if one.uses else []
                    output = run_in(self.case.options, module, batch, *uses)
                    objective(self.case, [output], [batch]).backward()  # type: ignore[no-untyped-call]
                outputs.setdefault(rank, []).append(output)
                self._accumulate(rank, module)
            self._synchronise_buffers(one, after=True)
        if one.synchronises:
            self._reduce()
        values = {rank: list(tensors_in(output)) for rank, output in outputs.items()}
        totals = {rank: self._total(rank) for rank in self.modules}
        return PassExpected(
            gradients={rank: self._gradients(total) for rank, total in totals.items()},
            outputs={rank: tuple(map(self.doubt.array, found)) for rank, found in values.items()},
            skeleton=skeleton_of(outputs[min(outputs)]),
            gradient_bounds={rank: self.doubt.bounds(total) for rank, total in totals.items()},
            output_bounds={rank: self.doubt.all_bounds(found) for rank, found in values.items()},
        )

    def _accumulate(self, rank: int, module: nn.Module) -> None:
        """Add the gradients of one backward to what the rank has not reduced yet."""
        mine = self.local[rank]
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                mine[name] = added(self.case, mine.get(name), parameter.grad.detach(), doubt=self.doubt)

    def _synchronise_buffers(self, one: Pass, *, after: bool) -> None:
        """Give all ranks the buffers of the lowest rank present before a synchronising forward, or a hook's mean."""
        if not (self.case.options.broadcast_buffers and one.sync in ("yes", "backward_inside")):
            return
        if self.case.special in ("buffers_before", "buffers_after"):
            if after == (self.case.special == "buffers_after"):
                self._average_buffers()
            return
        if after:
            return
        source = self.modules[min(self.modules)]
        with torch.no_grad():
            for module in self.modules.values():
                for name, buffer in module.named_buffers():
                    if name not in self.case.options.ignored:
                        buffer.copy_(source.get_buffer(name))

    def _average_buffers(self) -> None:
        replicas = list(self.modules.values())
        for name, first in replicas[0].named_buffers():
            if first.is_floating_point():
                mean = torch.stack([module.get_buffer(name) for module in replicas]).mean(0)
                for module in replicas:
                    module.get_buffer(name).copy_(mean)

    def _reduce(self) -> None:
        """Replace accumulated gradients with their mean over the ranks; ignored parameters keep their own."""
        case, ranks = self.case, list(self.modules)
        uneven = case.uneven
        whole = (uneven is None or uneven.divide_by_initial) and case.regroup is None
        count = case.ranks if whole else len(ranks)
        factor = (2 if case.hook == "user" else 1) / count
        names = [n for n, p in self.modules[ranks[0]].named_parameters() if p.requires_grad]
        for name in names:
            if name in case.options.ignored:
                for rank in ranks:
                    self.reduced[rank][name] = _sum(self.reduced[rank].get(name), self.local[rank].get(name))
                continue
            for together in dict.fromkeys(group_of(case, name, rank) for rank in ranks):
                share = factor if len(together) == case.ranks else 1 / len(together)
                self._average(name, [rank for rank in ranks if rank in together], share)
        for rank in ranks:
            self.local[rank] = {}

    def _average(self, name: str, ranks: list[int], factor: float) -> None:
        parts = [part for rank in ranks if (part := self.local[rank].get(name)) is not None]
        mean = mean_of(self.case, parts, factor=factor, doubt=self.doubt) if parts else None
        for rank in ranks:
            earlier = self.reduced[rank].get(name)
            self.reduced[rank][name] = mean_with_earlier(
                self.case, mean, earlier, ranks=len(ranks), doubt=self.doubt
            )

    def _total(self, rank: int) -> _Sums:
        names = [name for name, _ in self.modules[rank].named_parameters()]
        return {name: _sum(self.reduced[rank].get(name), self.local[rank].get(name)) for name in names}

    def _gradients(self, total: _Sums) -> Gradients:
        return {n: None if g is None else self.doubt.array(g) for n, g in total.items()}

    def _update(self, rank: int, name: str, gradient: Tensor) -> Tensor:
        """The optimizer's update, before the learning rate; Adam as in algorithm 1 of its paper."""
        if self.case.optimizer == "sgd":
            return gradient
        one, other = _BETAS
        zero = torch.zeros_like(gradient)
        count, first, second = self.moments.get((rank, name), (0, zero, zero))
        count, first = count + 1, one * first + (1 - one) * gradient
        second = other * second + (1 - other) * gradient.square()
        self.moments[rank, name] = count, first, second
        return first / (1 - one**count) / ((second / (1 - other**count)).sqrt() + EPS)

    def stepped(self, *, skipped: bool) -> dict[int, dict[str, Tensor]]:
        """The state after an optimizer step, which may be skipped."""
        for rank, module in self.modules.items():
            total = self._total(rank)
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    gradient = total[name]
                    if gradient is not None and parameter.requires_grad and not skipped:
                        parameter.sub_(self._update(rank, name, gradient), alpha=LR)
        return {rank: _named(module) for rank, module in self.modules.items()}


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
