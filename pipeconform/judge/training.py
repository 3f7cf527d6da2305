"""Losses, gradients, buffers and updates, compared with the oracle's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from pipeconform.adapter import Feature
from pipeconform.bounds.numerics import compare
from pipeconform.case.case import Case, Eval, Load, Optimize, Restart, Sgd, Step, Train
from pipeconform.judge.evidence import Evidence, Finding, Numbers, held, shown_step, unheld
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.relations import fate_of_earlier_steps, uniform_ratio
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Named, Observation, Reference, StepExpected, StepShown
from pipeconform.plural import plural

__all__ = [
    "buffers_are_right",
    "gradients_are_right",
    "input_gradients_are_right",
    "losses_and_gradients_are_right",
    "losses_are_right",
    "restored_is_saved",
    "state_is_right",
    "updates_are_right",
    "values_and_gradients_are_right",
]


def _per_stage(
    evidence: Evidence,
    steps: Iterator[StepExpected],
    *,
    what: str,
    right: Callable[[StepExpected], dict[int, Named]],
    mine: Callable[[StepShown], dict[int, Named]],
    bound: Callable[[StepExpected], dict[int, Named]],
    fate: Callable[[StepExpected, int, Named], str] = lambda expected, s, shown: "",
) -> Iterator[Finding]:
    """Compare named values of every stage on every owner; one finding per step, stage and rank.

    ``fate`` may say of a stage's wrong values, which it is given as they were shown, how they came about.
    """
    numbers = Numbers(evidence=evidence)
    for expected in steps:
        for s, values in right(expected).items():
            for one in evidence.owners(s):
                shown = mine(shown_step(one, expected.step)).get(s, {})
                if what == "gradient" and _has_float32_gradients(evidence.case):
                    shown = _rounded(shown, like=values)

                def bounds(reference: Reference, step: int = expected.step, s: int = s) -> Named:
                    return bound(reference.steps[step]).get(s, {})

                found = next(iter(numbers.named(values, shown, bounds)), None)
                if found is None:
                    continue
                name, mismatch = found
                ratio = uniform_ratio(values, shown)
                hint = (
                    ""
                    if ratio is None
                    else f"\nall of stage {s}'s values are {ratio:.6g} times the reference's"
                )
                told = fate(expected, s, shown) if mismatch.kind == "value" else ""
                hint += f"\nall of stage {s}'s gradients fit one mistake: {told}" if told else ""
                yield Finding(
                    kind=f"{what} of {told}" if told else f"{what} {mismatch.kind}",
                    message=f"the {what} of {name} in stage {s} is not the reference's\n{mismatch.describe()}{hint}",
                    step=expected.step,
                    rank=one.rank,
                    stage=s,
                    mismatch=mismatch,
                )


def _has_float32_gradients(case: Case) -> bool:
    """Whether gradients are added up in float32, or belong to float32 copies of the parameters."""
    return case.model.sums_in_float32 or (isinstance(case.optimizer, Sgd) and case.optimizer.masters)


def _rounded(values: Named, *, like: Named) -> Named:
    """Gradients in float32 as their parameters' dtype has them."""
    return {name: _as_dtype_of(like.get(name), value) for name, value in values.items()}


def _as_dtype_of(like: Array | None, value: Array | None) -> Array | None:
    if value is None or like is None or value.dtype != "float32" or like.dtype == "float32":
        return value
    import torch

    return Array.of(value.tensor().to(getattr(torch, like.dtype)))


def _at(values: Sequence[Array | None], index: int) -> Array | None:
    """One value of a sequence, or None where the sequence is empty because there are no bounds."""
    return values[index] if index < len(values) else None


def gradients_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Every parameter's gradient of every stage equals the oracle's after every training step."""

    def fate(expected: StepExpected, s: int, shown: Named) -> str:
        return fate_of_earlier_steps(
            before=evidence.expected.steps[expected.step - 1].gradients.get(s, {}) if expected.step else {},
            right=expected.gradients[s],
            mine=shown,
            m=len(evidence.sizes(expected.step)),
        )

    return _per_stage(
        evidence,
        evidence.runs(Train),
        what="gradient",
        right=lambda e: e.gradients,
        mine=lambda s: s.gradients,
        bound=lambda e: e.gradient_bounds,
        fate=fate,
    )


def losses_are_right(evidence: Evidence, *, of: type[Train] | type[Eval] = Train) -> Iterator[Finding]:
    """Every microbatch has one loss, with the right value, in the batch's order, and on the declared ranks only.

    Judges the steps of one kind.
    """
    numbers = Numbers(evidence=evidence)
    holders = evidence.result_ranks(evidence.capabilities.loss_on)
    several = Feature.MICROBATCH_LOSSES in evidence.capabilities.features
    for expected in evidence.runs(of):
        m = len(expected.losses)
        yield from unheld(evidence, expected, (o for o in evidence.members if o.pipeline_rank in holders))
        for one in evidence.shown:
            shown = shown_step(one, expected.step)
            where: dict[str, Any] = {"step": expected.step, "rank": one.rank}
            if one.pipeline_rank not in holders:
                if shown.losses is not None or shown.loss is not None:
                    text = f"rank {one.rank} returned losses, which belong on pipeline rank {sorted(holders)}"
                    yield Finding(kind="loss on the wrong rank", message=text, **where)
                continue
            own = held(shown, m)
            evidence.compared()
            if (several or shown.losses) and len(shown.losses or ()) != len(own):
                count = "no losses" if shown.losses is None else plural(len(shown.losses), "loss")
                text = f"{count} for {plural(len(own), 'microbatch')}"
                yield Finding(kind="number of losses", message=text, **where)
                continue
            if not shown.losses and shown.loss is None and own:
                text = f"rank {one.rank} returned no loss, although it is declared to hold losses"
                yield Finding(kind="no loss", message=text, **where)
            for k, mine in zip(own, shown.losses or (), strict=False):
                right = expected.losses[k]

                def bound(reference: Reference, step: int = expected.step, k: int = k) -> Array | None:
                    return _at(reference.steps[step].loss_bounds, k)

                mismatch = numbers.differs(right, mine, bound)
                if mismatch is None:
                    continue
                swapped = mine in expected.losses
                text = (
                    f"microbatch {expected.losses.index(mine)}'s loss stands in the place of microbatch {k}'s"
                    if swapped
                    else f"the loss of microbatch {k} is not the reference's\n{mismatch.describe()}"
                )
                kind = "loss order" if swapped else "loss value"
                yield Finding(kind=kind, message=text, microbatch=k, mismatch=mismatch, **where)
                break
            if shown.loss is not None and len(own) == m:
                yield from _total_loss(evidence, expected, shown.loss, one.rank)


def _total_loss(evidence: Evidence, expected: StepExpected, mine: Array, rank: int) -> Iterator[Finding]:
    """The single loss that some engines return is the mean or the sum of the losses."""
    import torch

    evidence.compared()
    losses = torch.stack([loss.tensor() for loss in expected.losses])
    mean = evidence.case.loss.reduction == "mean"
    weighted = losses.double()
    if mean and evidence.capabilities.loss_over == "batch":
        sizes = torch.tensor(evidence.sizes(expected.step), dtype=torch.float64)
        weighted = weighted * sizes / sizes.mean()
    right = weighted.mean() if mean else weighted.sum()
    # m additions and a division, each off by one unit round-off of the sum so far
    bound = (losses.shape[0] + 2) * torch.finfo(losses.dtype).eps * weighted.abs().sum()
    bound = bound / losses.shape[0] if mean else bound
    bounds = (
        evidence.bounded("running").steps[expected.step].loss_bounds
        if mine != Array.of(right.to(losses.dtype))
        else ()
    )
    bound = bound + sum(float(one.tensor().abs()) for one in bounds)
    near = right.isfinite() & ((mine.tensor().double() - right).abs() <= bound)
    # NaN and infinity are right only if the reference has the same, and are close to no number
    same = torch.isclose(
        mine.tensor().double(), right.to(losses.dtype).double(), rtol=0, atol=0, equal_nan=True
    )
    if not bool(near | same) and not evidence.overflows:
        yield Finding(
            kind="total loss",
            message=f"the loss is {float(mine.tensor())!r}, the reference's is {float(right)!r}",
            step=expected.step,
            rank=rank,
        )


def losses_and_gradients_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Losses and gradients equal the oracle's, for requirements about the loss function."""
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


def values_and_gradients_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Outputs and gradients equal the oracle's, for requirements about what a module does inside a stage."""
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


def input_gradients_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Inputs of the first stage, and keyword arguments, that require a gradient receive it, scaled as declared."""
    yield from _per_stage(
        evidence,
        evidence.runs(Train),
        what="keyword argument's gradient",
        right=lambda e: e.kwarg_gradients,
        mine=lambda s: s.kwarg_gradients,
        bound=lambda e: e.kwarg_gradient_bounds,
    )
    numbers = Numbers(evidence=evidence)
    for expected in evidence.runs(Train):
        for one in evidence.owners(0):
            mine = shown_step(one, expected.step).input_gradients or ()
            for i, right in enumerate(expected.input_gradients):
                got = mine[i] if i < len(mine) else None

                def bound(reference: Reference, step: int = expected.step, i: int = i) -> Array | None:
                    return _at(reference.steps[step].input_gradient_bounds, i)

                mismatch = numbers.differs(right, got, bound)
                if mismatch is not None:
                    yield Finding(
                        kind=f"input gradient {mismatch.kind}",
                        message=f"the gradient of input {i} is not the reference's\n{mismatch.describe()}",
                        step=expected.step,
                        rank=one.rank,
                        stage=0,
                        mismatch=mismatch,
                    )


def buffers_are_right(evidence: Evidence) -> Iterator[Finding]:
    """After every run, running statistics and counts are those of the microbatches in turn."""
    if any(len(owners) > 1 for owners in evidence.placement):
        return iter(())  # each owner of a stage saw only some microbatches
    return _per_stage(
        evidence,
        evidence.runs(),
        what="buffer",
        right=lambda e: e.buffers,
        mine=lambda s: s.buffers,
        bound=lambda e: e.buffer_bounds,
    )


def state_is_right(evidence: Evidence) -> Iterator[Finding]:
    """After every step that loads a state, parameters and buffers are those that were loaded, bit for bit."""
    for what in ("parameter", "buffer"):
        values = attrgetter(f"{what}s")
        yield from _per_stage(
            evidence, evidence.runs(Load), what=what, right=values, mine=values, bound=lambda e: {}
        )


def restored_is_saved(evidence: Evidence) -> Iterator[Finding]:
    """After a restart every rank has the parameters and buffers that it had before, bit for bit."""
    for expected in evidence.runs(Restart):
        for one in evidence.members:
            before, after = shown_step(one, expected.step - 1), shown_step(one, expected.step)
            for what, saved, restored in (
                ("parameter", before.parameters, after.parameters),
                ("buffer", before.buffers, after.buffers),
            ):
                for s, values in saved.items():
                    evidence.compared(len(values))
                    yield from _not_restored(what, expected.step, one, s, values, restored.get(s, {}))


def _not_restored(
    what: str, step: int, one: Observation, s: int, saved: Named, restored: Named
) -> Iterator[Finding]:
    """The first of a stage's values that differs from what was saved, and how many others do."""
    compared = ((name, compare(saved.get(name), restored.get(name))) for name in {**saved, **restored})
    wrong = [(name, mismatch) for name, mismatch in compared if mismatch is not None]
    if wrong:
        name, mismatch = wrong[0]
        others = f"; {plural(len(wrong) - 1, f'further {what}')} of it differ too" if len(wrong) > 1 else ""
        yield Finding(
            kind="parameter not restored" if what == "parameter" else "buffer not restored",
            message=(
                f"the {what} of {name} in stage {s} is not what was saved{others}\n{mismatch.describe()}"
            ),
            step=step,
            rank=one.rank,
            stage=s,
            mismatch=mismatch,
        )


def updates_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Parameters track the oracle's over all optimizer steps, and do not move at all when lr is zero."""
    steps: tuple[type[Step], ...] = (Train, Optimize)
    if evidence.capabilities.fused_optimizer:
        steps = (Optimize,)  # the training step has already updated them
    return _per_stage(
        evidence,
        evidence.runs(steps),
        what="parameter",
        right=lambda e: e.parameters,
        mine=lambda s: s.parameters,
        bound=lambda e: e.parameter_bounds,
    )
