"""The first tensor, in data-flow order, that left its numeric class.

A wrong gradient at the end of a step does not show where the computation went wrong. Here every tensor that passes
between stages, in both directions, is compared with the oracle's, and the first wrong one is named. The data flow::

    microbatch k:  input 0 → output 0 → input 1 → … → output S−1 → loss k
                   → output gradient S−1 → input gradient S−1 → output gradient S−2 → … → input gradient 0
    then, of all:  buffers, weight gradients S−1 … 0, gradients of the caller's inputs, parameters

Microbatches come one after the other, and so do steps. A tensor has left its class when it exceeds the bound of the
running error analysis of the whole model. If none does, but a forward value has other bits than the oracle's (in a
step before the first update), that one is named: forwards are judged bit for bit. No verdict depends on any of this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal

from msgspec import structs

from pipeconform.adapter import Feature
from pipeconform.case.case import Load, Optimize, Train
from pipeconform.errors import HarnessError
from pipeconform.judge import relations, training
from pipeconform.judge.evidence import Evidence, Finding, Judge, held, shown_step
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.localise.classes import Classes, Passage, passages_of
from pipeconform.judge.localise.dataflow import Check, Side, deviation_of, lanes_of, order_of, place_of
from pipeconform.judge.localise.hints import likeness, scaled
from pipeconform.judge.localise.matching import by_microbatch
from pipeconform.observe.array import Array
from pipeconform.observe.localisation import Direction, Lane, Localisation
from pipeconform.observe.observation import Flow, Forward, StepExpected, Structure

__all__ = ["locate", "locate_among"]


def locate(evidence: Evidence, copied: Evidence) -> Localisation:
    """Compare everything with the oracle; `copied` is the same evidence with the oracle that copies microbatches.

    Both references hold what passes between stages (`StepExpected.flow`), and so do the bounded ones.
    """
    search, num_stages = _Search(evidence, copied), evidence.case.num_stages
    checks = sorted(search.checks(), key=lambda one: order_of(one, num_stages))
    first_update = _first_update(evidence)
    wrong = [one for one in checks if one.is_wrong] or [
        one
        for one in checks
        if one.bits_only and one.direction == "forward value" and one.step < first_update
    ]
    first = wrong[0] if wrong else None
    return Localisation(
        first=None if first is None else deviation_of(first),
        lanes=() if first is None else _lanes(evidence, checks, wrong, first.step),
        compared=len(checks),
        wrong=len(wrong),
        bounded=search.classes.are_bounded,
    )


def locate_among(replicas: Sequence[tuple[Evidence, Evidence]]) -> Localisation:
    """Like `locate`, over the replicas of a pipeline: the first wrong tensor of all of them.

    The result is about the replica that has this tensor; if several have one at the same place, about the first.
    """
    found = [locate(evidence, copied) for evidence, copied in replicas]
    num_stages = replicas[0][0].case.num_stages
    wrong = [(place_of(one.first, num_stages), d) for d, one in enumerate(found) if one.first is not None]
    d = min(wrong)[1] if wrong else 0
    first = found[d].first
    return structs.replace(
        found[d],
        first=None if first is None else structs.replace(first, replica=d),
        compared=sum(one.compared for one in found),
        wrong=sum(one.wrong for one in found),
        bounded=all(one.bounded for one in found),
    )


def _first_update(evidence: Evidence) -> int:
    """The first step after which parameters may legitimately differ in their last bits."""
    updates = (Optimize, Load, Train) if evidence.capabilities.fused_optimizer else (Optimize, Load)
    program = evidence.case.program
    found = (index + 1 for index, step in enumerate(program) if isinstance(step, updates))
    return next(found, len(program))


def _lanes(evidence: Evidence, checks: list[Check], wrong: list[Check], step: int) -> tuple[Lane, ...]:
    m = next((len(evidence.sizes(run.step)) for run in evidence.runs() if run.step == step), 1)
    stages = evidence.case.num_stages
    return tuple(lanes_of(checks, wrong, step, num_stages=stages, num_microbatches=m))


_SIDES: tuple[tuple[Literal["input", "output"], Callable[[Forward], tuple[Array, ...]]], ...] = (
    ("input", lambda call: _flat(call.inputs)),
    ("output", lambda call: call.output.leaves()),
)


class _Search:
    def __init__(self, evidence: Evidence, copied: Evidence) -> None:
        self.evidence, self.copied = evidence, copied
        self.classes = Classes(evidence)
        self._inner: list[tuple[float, int]] = []
        """For each step so far with right gradients: the factor inside, and the number of microbatches."""
        self.observed = any(
            step.flow for one in evidence.shown for step in one.steps if step.flow is not None
        )
        """Whether stages reported any gradient: an engine may have replaced the modules of the plan's model."""

    def checks(self) -> Iterator[Check]:
        forwards = {expected.step: self._matched(expected) for expected in self.evidence.runs()}
        for expected in self.evidence.runs():
            yield from self._forward_values(expected, forwards[expected.step])
        yield from self._results()
        for expected in self.evidence.runs(Train):
            whole = list(self._weights(expected))
            yield from whole
            if self.observed:
                yield from self._gradients(expected, forwards[expected.step], whole)

    # ------------------------------------------------------------------------------------- forwards

    def _matched(self, expected: StepExpected) -> list[list[list[tuple[int, Forward]]]]:
        """The forwards of each stage and microbatch, each with the rank that ran it."""
        found = []
        for s in range(len(expected.inputs)):
            rows = [
                (one.rank, call)
                for one in self.evidence.owners(s)
                for call in shown_step(one, expected.step).forwards
                if call.stage == s
            ]
            if any(call.grad_enabled for _, call in rows):
                rows = [(rank, call) for rank, call in rows if call.grad_enabled]
            rights = [expected.inputs[s], self.copied.expected.steps[expected.step].inputs[s]]
            places = by_microbatch([call for _, call in rows], rights)
            found.append([[rows[index] for index in own] for own in places])
        return found

    def _forward_values(
        self, expected: StepExpected, forwards: list[list[list[tuple[int, Forward]]]]
    ) -> Iterator[Check]:
        flow = passages_of(expected.flow)
        other = self.copied.expected.steps[expected.step]
        for s, own in enumerate(forwards):
            for k, calls in enumerate(own):
                for side, pick in _SIDES:
                    rights = [_leaves(one, side, s, k) for one in (expected, other)]
                    if not calls:
                        continue
                    rank, call = next(
                        (one for one in calls if pick(one[1]) in rights), calls[-1]
                    )  # of repeats, the right one
                    if pick(call) in rights:
                        yield Check(
                            direction="forward value",
                            step=expected.step,
                            stage=s,
                            microbatch=k,
                            side=side,
                            rank=rank,
                        )
                        continue
                    peers = [_leaves(expected, side, s, other_k) for other_k in range(len(own))]
                    yield from self._leaf_by_leaf(expected.step, s, k, side, rank, pick(call), peers, flow)

    def _leaf_by_leaf(
        self,
        step: int,
        s: int,
        k: int,
        side: Literal["input", "output"],
        rank: int,
        mine: tuple[Array, ...],
        peers: Sequence[tuple[Array, ...]],
        flow: dict[Passage, Flow],
    ) -> Iterator[Check]:
        right = peers[k]
        for position in range(max(len(right), len(mine))):
            a = right[position] if position < len(right) else None
            b = mine[position] if position < len(mine) else None
            found, exceeds = self.classes.judged(step, a, b, (side, s, k, position))
            yield Check(
                direction="forward value",
                step=step,
                stage=s,
                microbatch=k,
                side=side,
                rank=rank,
                tensor=f"{side} {position}",
                mismatch=found,
                bits_only=found is not None and not exceeds,
                likeness=""
                if found is None or a is None or b is None
                else likeness(
                    a, b, {j: p[position] for j, p in enumerate(peers) if position < len(p)}, own=k
                ),
            )

    # ------------------------------------------------------------------------- what the caller is given

    def _results(self) -> Iterator[Check]:
        last = self.evidence.case.num_stages - 1
        outputs = min(self._asked(outputs_are_right), self._asked(outputs_are_right, self.copied), key=len)
        for finding in outputs:
            if finding.microbatch is not None:  # otherwise nothing was returned: no wrong value
                yield _told(finding, "forward value", last, side="result", tensor="returned output")
        wrong = {(one.step, one.microbatch) for one in outputs}
        for expected in self.evidence.runs():
            for k in range(len(expected.outputs)):
                if not {(expected.step, k), (expected.step, None)} & wrong:
                    where = {"step": expected.step, "stage": last, "microbatch": k}
                    yield Check(direction="forward value", side="result", **where)  # type: ignore[arg-type]
            yield from self._losses(expected)
        for finding in self._asked(training.losses_are_right):
            if finding.kind == "total loss":
                yield _told(finding, "loss", last, tensor="loss")
        if Feature.STATE in self.evidence.capabilities.features:
            for finding in self._asked(training.buffers_are_right):
                yield _told(finding, "buffer", last)
            for finding in self._asked(training.updates_are_right):
                yield _told(finding, "parameter", last)

    def _losses(self, expected: StepExpected) -> Iterator[Check]:
        """Every returned loss; a single loss for all microbatches is compared by a judgement."""
        for one in self.evidence.members:
            shown = shown_step(one, expected.step)
            for k, mine in zip(held(shown, len(expected.losses)), shown.losses or (), strict=False):
                right = expected.losses[k]
                found, exceeds = self.classes.judged(expected.step, right, mine, ("loss", 0, k, 0))
                yield Check(
                    direction="loss",
                    step=expected.step,
                    stage=self.evidence.case.num_stages - 1,
                    microbatch=k,
                    rank=one.rank,
                    tensor="loss",
                    mismatch=found,
                    bits_only=found is not None and not exceeds,
                    likeness=""
                    if found is None
                    else likeness(right, mine, dict(enumerate(expected.losses)), own=k),
                )

    def _asked(self, judge: Judge, evidence: Evidence | None = None) -> list[Finding]:
        try:
            return list(judge(evidence or self.evidence))
        except HarnessError:
            self.classes.give_up()  # an operation has no rule: leave out what depends on bounds
            return []

    # ------------------------------------------------------------------------------------- gradients

    def _weights(self, expected: StepExpected) -> Iterator[Check]:
        """Gradients of weights and of the caller's inputs."""
        judged: tuple[tuple[Judge, Direction, Side], ...] = (
            (training.gradients_are_right, "weight gradient", ""),
            (training.input_gradients_are_right, "input gradient", "result"),
        )
        for judge, direction, side in judged:
            found = [one for one in self._findings(judge) if one.step == expected.step]
            yield from (_told(one, direction, 0, side=side) for one in found)
            wrong = {one.stage for one in found}
            stages = expected.gradients if not side else {0} if any(expected.input_gradients) else ()
            for s in stages:
                if s not in wrong:
                    yield Check(direction=direction, step=expected.step, stage=s, microbatch=None, side=side)

    def _findings(self, judge: Judge) -> list[Finding]:
        if judge not in self._known:
            self._known[judge] = self._asked(judge)
        return self._known[judge]

    @cached_property
    def _known(self) -> dict[Judge, list[Finding]]:
        return {}

    def _gradients(
        self,
        expected: StepExpected,
        forwards: list[list[list[tuple[int, Forward]]]],
        whole: Sequence[Check],
    ) -> Iterator[Check]:
        """All gradients that pass between stages."""
        told: dict[tuple[int, int], list[Flow]] = defaultdict(list)
        for one in self.evidence.members:
            for flow in shown_step(one, expected.step).flow or ():
                told[one.rank, flow.call].append(flow)
        mine: dict[Passage, list[Array]] = defaultdict(list)
        ranks: dict[tuple[int, int], int] = {}
        for s, own in enumerate(forwards):
            for k, calls in enumerate(own):
                for rank, call in calls:
                    ranks[s, k] = rank
                    for flow in told[rank, call.call]:
                        mine[flow.kind, s, k, flow.position].append(flow.value)
        right = _gradients_of(expected)
        scale = self._inner_scale(expected, mine, whole)
        # what the engine does to gradients between stages, and undoes at the end, is its own affair
        if not any(one.is_wrong for one in whole):
            return
        for (kind, s, k, position), unscaled in right.items():
            value = scaled(unscaled, scale)
            candidates = mine.get((kind, s, k, position), [])
            found, exceeds, shown = self.classes.best(
                expected.step, value, candidates, (kind, s, k, position), scale=scale
            )
            peers = {j: r for (a, b, j, c), r in right.items() if (a, b, c) == (kind, s, position)}
            yield Check(
                direction="output gradient" if kind == "output gradient" else "input gradient",
                step=expected.step,
                stage=s,
                microbatch=k,
                rank=ranks.get((s, k)),
                tensor=f"gradient of {kind.removesuffix(' gradient')} {position}",
                mismatch=found if exceeds else None,
                likeness="none passed"
                if shown is None
                else likeness(value, shown, peers, own=k)
                if found
                else "",
            )

    def _inner_scale(
        self, expected: StepExpected, mine: dict[Passage, list[Array]], whole: Sequence[Check]
    ) -> float:
        """The factor by which an engine scales gradients between stages and which it removes at the end; usually 1.

        All microbatches have it at the end of the last stage, while that stage's weight gradients are right, in this
        step or in an earlier one with the same factor, or with the same factor relative to the number of microbatches.
        """
        last, m = self.evidence.case.num_stages - 1, len(self.evidence.sizes(expected.step))
        ratios = [
            relations.uniform_ratio({"": value}, {"": mine[key][0]}) if mine.get(key) else None
            for key, value in _gradients_of(expected).items()
            if key[0] == "output gradient" and key[1] == last
        ]
        common = (ratios[0] if ratios else None) or 1.0  # a gradient that is lost, ratio 0, is no scale
        found = common if all(r is not None and abs(r / common - 1) < 1e-6 for r in ratios) else 1.0
        if not any(
            one.is_wrong and one.stage == last and one.direction == "weight gradient" for one in whole
        ):
            self._inner.append((found, m))
            return found
        alike = (
            abs(found - r) < 1e-6 or (r != 1.0 and abs(found / m - r / n) < 1e-6) for r, n in self._inner
        )
        return found if any(alike) else 1.0


def _gradients_of(expected: StepExpected) -> dict[Passage, Array]:
    flow = passages_of(expected.flow)
    return {key: one.value for key, one in flow.items() if one.kind.endswith("gradient")}


def _told(finding: Finding, direction: Direction, stage: int, *, side: Side = "", tensor: str = "") -> Check:
    """A finding about end results, as a comparison."""
    assert finding.step is not None
    headline, _, rest = finding.message.partition("\n")
    return Check(
        direction=direction,
        step=finding.step,
        stage=stage if finding.stage is None else finding.stage,
        microbatch=finding.microbatch,
        side=side,
        rank=finding.rank,
        tensor=tensor or headline.removesuffix(" is not the reference's"),
        mismatch=None,
        words=rest or headline,
    )


def _flat(values: Iterable[Structure]) -> tuple[Array, ...]:
    return tuple(leaf for value in values for leaf in value.leaves())


def _leaves(expected: StepExpected, side: str, s: int, k: int) -> tuple[Array, ...]:
    """The right values at an edge of a stage."""
    if side == "input":
        return _flat(expected.inputs[s][k])
    if s + 1 < len(expected.inputs):
        return _flat(expected.inputs[s + 1][k])
    return expected.outputs[k].leaves()
