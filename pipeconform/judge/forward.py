"""Outputs and boundary tensors, compared with the oracle's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pipeconform.adapter import Feature, MergeRule
from pipeconform.bounds.numerics import Mismatch, compare
from pipeconform.case.case import Case, Train
from pipeconform.judge.evidence import Evidence, Finding, Numbers, held, missing, shown_step, unheld
from pipeconform.judge.timeline import recogniser
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Forward, Named, Observation, Reference, StepExpected, Structure
from pipeconform.plural import plural

__all__ = [
    "batch_order_is_kept",
    "boundaries_arrive",
    "compilation_is_named",
    "containers_are_kept",
    "gradients_with_hooks",
    "holders",
    "leaves_by_microbatch",
    "merges_are_right",
    "outputs_are_due",
    "outputs_are_right",
    "tensors_without_gradient_arrive",
]


def outputs_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Every microbatch's output is the oracle's, bit for bit or within the bound of any evaluation.

    The same operations may round differently on parameters that lie elsewhere in memory, such as in one flat buffer:
    kernels choose by alignment. Returned outputs are judged even if they are not claimed. If an engine neither claims
    nor returns outputs, what its last stage computed is judged instead, where that is seen.
    """
    if not outputs_are_due(evidence):
        if evidence.capabilities.computed_by == "modules":
            yield from _captured_outputs(evidence)
        return
    for expected in evidence.runs():
        yield from unheld(evidence, expected, holders(evidence))
        for one in holders(evidence):
            output = shown_step(one, expected.step).output
            if output is None:
                yield Finding(
                    kind="no output",
                    message="the rank that owns the last stage returned no output",
                    step=expected.step,
                    rank=one.rank,
                )
                continue
            for k, right, mine in leaves_by_microbatch(evidence, expected, one, output):
                yield from _compare_output(evidence, expected, one, k, right, mine)


def outputs_are_due(evidence: Evidence) -> bool:
    """Whether outputs are claimed or returned."""
    return Feature.OUTPUTS in evidence.capabilities.features or any(
        step.output is not None for one in evidence.members for step in one.steps
    )


def holders(evidence: Evidence) -> list[Observation]:
    """The ranks that return outputs."""
    ranks = evidence.result_ranks(evidence.capabilities.outputs_on)
    return [one for one in evidence.members if one.pipeline_rank in ranks]


def leaves_by_microbatch(
    evidence: Evidence, expected: StepExpected, one: Observation, output: Structure
) -> Iterator[tuple[int, tuple[Array, ...], tuple[Array, ...]]]:
    """For each microbatch that the rank holds: index, the oracle's leaves, and the slices of the merged output."""
    sizes, dim = evidence.sizes(expected.step), evidence.case.model.batch_dim
    leaves = [leaf.tensor() for leaf in output.leaves()]
    start = 0
    for k in held(shown_step(one, expected.step), len(sizes)):
        right = expected.outputs[k]
        # a mistaken input may have another number of samples than was announced; the reference has the right one
        size = next((leaf.shape[dim] for leaf in right.leaves() if len(leaf.shape) > dim), sizes[k])
        mine = tuple(
            Array.of(
                leaf.narrow(dim, min(start, leaf.shape[dim]), max(0, min(size, leaf.shape[dim] - start)))
            )
            for leaf in leaves
            if leaf.ndim > dim
        )
        start += size
        yield k, right.leaves(), mine


def _compare_output(
    evidence: Evidence,
    expected: StepExpected,
    one: Observation,
    k: int,
    right: tuple[Array, ...],
    mine: tuple[Array, ...],
) -> Iterator[Finding]:
    mismatch: Mismatch | None = None
    if len(right) != len(mine):
        mismatch = missing(
            *(None if len(side) < max(len(right), len(mine)) else side[-1] for side in (right, mine))
        )
    mismatch = mismatch or _differing(evidence, expected.step, k, right, mine)
    if mismatch is not None:
        yield Finding(
            kind=f"output {mismatch.kind}",
            message=f"the output of microbatch {k} is not the reference's\n{mismatch.describe()}",
            step=expected.step,
            rank=one.rank,
            microbatch=k,
            mismatch=mismatch,
        )


def _forwards_of(evidence: Evidence, step: int, stage: int) -> list[Forward]:
    """The forwards of a stage in one step, on all ranks that own it."""
    return [
        call
        for one in evidence.owners(stage)
        for call in shown_step(one, step).forwards
        if call.stage == stage
    ]


def _differing(
    evidence: Evidence, step: int, k: int, right: tuple[Array, ...], mine: tuple[Array, ...]
) -> Mismatch | None:
    """The first leaf of a microbatch's output that differs by more than rounding."""
    numbers = Numbers(evidence=evidence)
    for position, (a, b) in enumerate(zip(right, mine, strict=False)):

        def bound(reference: Reference, at: int = position) -> Array | None:
            found = reference.steps[step].output_bounds
            return found[k][at] if found else None

        mismatch = numbers.differs(a, b, bound)
        if mismatch is not None:
            return mismatch
    return None


def _captured_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Judge what the last stage computed, for engines that return no outputs."""
    last = evidence.case.num_stages - 1
    for expected in evidence.runs():
        forwards = _forwards_of(evidence, expected.step, last)
        seen = [f.output for f in forwards]
        recognise = recogniser(expected.inputs)
        for k, right in enumerate(expected.outputs):
            evidence.compared()
            if right in seen:
                continue
            near = [f.output for f in forwards if recognise(f) == (k,)]
            mine = seen[-len(expected.outputs) :][k] if len(seen) >= len(expected.outputs) else None
            mine = near[-1] if near else mine
            leaves = (right.leaves(), mine.leaves() if mine else ())
            mismatch = _differing(evidence, expected.step, k, *leaves)
            if mismatch is None and len(leaves[0]) == len(leaves[1]):
                continue
            detail = mismatch.describe() if mismatch else "no forward of the last stage computed it"
            yield Finding(
                kind="output value",
                message=f"the output of microbatch {k} is not the reference's\n{detail}",
                step=expected.step,
                stage=last,
                microbatch=k,
                mismatch=mismatch,
            )


def batch_order_is_kept(evidence: Evidence) -> Iterator[Finding]:
    """The merged output has the batch's length, and its microbatches are in the batch's order."""
    dim = evidence.case.model.batch_dim
    for expected in evidence.runs():
        sizes = evidence.sizes(expected.step)
        yield from unheld(evidence, expected, holders(evidence))
        for one in holders(evidence):
            output = shown_step(one, expected.step).output
            total = sum(sizes[k] for k in held(shown_step(one, expected.step), len(sizes)))
            if output is None or not output.leaves():
                yield Finding(kind="no output", message="no merged output", step=expected.step, rank=one.rank)
                continue
            length = output.leaves()[0].shape[dim] if len(output.leaves()[0].shape) > dim else 0
            evidence.compared()
            if length != total:
                yield Finding(
                    kind="output length",
                    message=f"the merged output has {length} samples, the batch has {total}",
                    step=expected.step,
                    rank=one.rank,
                )
                continue
            rights = [right.leaves() for right in expected.outputs]
            for k, right, mine in leaves_by_microbatch(evidence, expected, one, output):
                evidence.compared()
                if mine != right and mine in rights:
                    yield Finding(
                        kind="output order",
                        message=f"microbatch {rights.index(mine)}'s output stands in the place of microbatch {k}'s",
                        step=expected.step,
                        rank=one.rank,
                        microbatch=k,
                    )
            if len(set(sizes)) > 1:
                yield from _rows_in_order(evidence, expected, one, output)


def _rows_in_order(
    evidence: Evidence, expected: StepExpected, one: Observation, output: Structure
) -> Iterator[Finding]:
    """Every sample of the output is nearest to the same sample of the reference, however it was split."""
    import torch

    dim = evidence.case.model.batch_dim
    own = held(shown_step(one, expected.step), len(expected.outputs))
    if not own:
        return
    rights = torch.cat([expected.outputs[k].leaves()[0].tensor() for k in own], dim)
    right = rights.movedim(dim, 0).flatten(1).double()
    mine = output.leaves()[0].tensor().movedim(dim, 0).flatten(1).double()
    if mine.shape != right.shape:
        return
    distance = (mine[:, None] - right[None]).abs().amax(-1).nan_to_num(torch.inf, torch.inf)
    for sample in range(len(right)):
        nearest = float(distance[sample].min())
        if not float(distance[sample, sample]) <= nearest or not math.isfinite(nearest):
            place = int(distance[sample].argmin())
            text = f"sample {sample} of the output is nearest to the reference's sample {place}"
            if not math.isfinite(nearest):
                text = f"sample {sample} of the output is not finite"
            yield Finding(kind="output order", message=text, step=expected.step, rank=one.rank)
            return


def merges_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Every output is merged by its own rule, bit for bit; of the oracle's values or of what the stage returned."""
    from pipeconform.case.build.merges import merged, rules_of

    case = evidence.case
    for expected in evidence.runs():
        yield from unheld(evidence, expected, holders(evidence))
        for one in holders(evidence):
            output = shown_step(one, expected.step).output
            mine = () if output is None else output.leaves()
            own = held(shown_step(one, expected.step), len(expected.outputs))
            if not own:
                continue
            columns = zip(*(expected.outputs[k].leaves() for k in own), strict=True)
            for place, (rule, column) in enumerate(zip(rules_of(case), columns, strict=True)):
                values = [value.tensor() for value in column]
                right = Array.of(merged(rule, values, batch_dim=case.model.batch_dim))
                found = mine[place] if place < len(mine) else None
                evidence.compared()
                mismatch = missing(right, None) if found is None else compare(right, found)
                if mismatch is None or _is_merged(evidence, expected, found, rule, own, place):
                    continue
                what = "batch" if place == 0 else case.model.merged[place - 1]
                yield Finding(
                    kind=f"merge {mismatch.kind} ({what})",
                    message=f"output {place}, merged {_MERGED[what]}, is not that of its microbatches\n"
                    f"{mismatch.describe()}",
                    step=expected.step,
                    rank=one.rank,
                    mismatch=mismatch,
                )
                return


def _is_merged(
    evidence: Evidence,
    expected: StepExpected,
    mine: Array | None,
    rule: MergeRule | None,
    own: tuple[int, ...],
    place: int,
) -> bool:
    """Whether an output is that of what the last stage itself returned for these microbatches."""
    from pipeconform.case.build.merges import merged

    last = evidence.case.num_stages - 1
    recognise = recogniser(expected.inputs)
    returned: dict[int, Array] = {}
    for call in _forwards_of(evidence, expected.step, last):
        if place < len(leaves := call.output.leaves()):
            returned |= dict.fromkeys(recognise(call), leaves[place])
    if not set(own) <= returned.keys():
        return False
    values = [returned[k].tensor() for k in own]
    return mine == Array.of(merged(rule, values, batch_dim=evidence.case.model.batch_dim))


_MERGED = {
    "batch": "as usual",
    "turned": "in dimension 1",
    "whole": "by showing once what is the same in every microbatch",
    "parameter": "in dimension 0",
    "total": "by the user's function",
}


def containers_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """Tuples, lists, dicts and single tensors keep their kind, at boundaries and in the output."""
    yield from boundaries_arrive(evidence)
    if not outputs_are_due(evidence):
        return
    for expected in evidence.runs():
        for one in holders(evidence):
            output = shown_step(one, expected.step).output
            right = expected.outputs[0].shape()
            evidence.compared()
            if output is not None and output.shape() != right:
                yield Finding(
                    kind="output container",
                    message=f"the merged output is {output.shape()}; each microbatch's output is {right}",
                    step=expected.step,
                    rank=one.rank,
                )
    yield from outputs_are_right(evidence)


def boundaries_arrive(evidence: Evidence) -> Iterator[Finding]:
    """Every stage receives, for every microbatch, the inputs that the oracle's stage received.

    Where the stage before rounds otherwise than the oracle's, they are what that stage returned for this microbatch. Of
    stages that graphs compute, what arrives is not seen: outputs are judged instead.
    """
    if evidence.capabilities.computed_by == "graphs":
        yield from outputs_are_right(evidence)
        return
    for expected in evidence.runs():
        recognise = recogniser(expected.inputs)
        for s, microbatches in enumerate(expected.inputs):
            forwards = _forwards_of(evidence, expected.step, s)
            ranks = [one.rank for one in evidence.owners(s)]
            for k, right in enumerate(microbatches):
                evidence.compared(s > 0)  # nothing crosses a boundary to the first stage
                if any(f.inputs == right for f in forwards):
                    continue
                near = [f for f in forwards if recognise(f) == (k,)]
                if not any(_was_handed_over(evidence, expected, f, right) for f in near):
                    yield _boundary_finding(expected.step, s, k, ranks[0], right, forwards, len(microbatches))


def _was_handed_over(
    evidence: Evidence, expected: StepExpected, forward: Forward, right: tuple[Structure, ...]
) -> bool:
    """Whether a stage was given, in the right containers, exactly what the stage before returned in one forward."""
    mine, due = (
        [(one.shape(), one.placements, one.whole) for one in values] for values in (forward.inputs, right)
    )
    if mine != due:
        return False
    given = tuple(leaf for one in forward.inputs for leaf in one.leaves())
    before = forward.stage - 1
    return before >= 0 and any(
        call.output.leaves() == given for call in _forwards_of(evidence, expected.step, before)
    )


def _boundary_finding(
    step: int,
    stage: int,
    k: int,
    rank: int,
    right: tuple[Structure, ...],
    forwards: list[Forward],
    num_microbatches: int,
) -> Finding:
    """A finding about the first input that differs; the last m forwards are taken to be microbatches 0…m−1."""
    where: dict[str, Any] = {"step": step, "rank": rank, "stage": stage, "microbatch": k}
    if len(forwards) < num_microbatches:
        text = (
            f"stage {stage} ran {plural(len(forwards), 'time')} for {plural(num_microbatches, 'microbatch')}"
        )
        return Finding(kind="forward missing", message=text, **where)
    mine = forwards[-num_microbatches:][k].inputs
    if len(mine) != len(right):
        text = f"stage {stage} received {plural(len(mine), 'input')} instead of {len(right)}"
        return Finding(kind="boundary arity", message=text, **where)
    for position, (a, b) in enumerate(zip(right, mine, strict=True)):
        if a.shape() != b.shape():
            text = f"input {position} of stage {stage} is {b.shape()} instead of {a.shape()}"
            return Finding(kind="boundary container", message=text, **where)
        if a.whole is not None and b.whole is not None and a.whole != b.whole:
            text = (
                f"input {position} of stage {stage} (microbatch {k}) is a DTensor that says that its whole has the "
                f"shape {list(b.whole)}; it has {list(a.whole)}"
            )
            return Finding(kind="boundary global shape", message=text, **where)
        for one, other in zip(a.leaves(), b.leaves(), strict=True):
            mismatch = compare(one, other)
            if mismatch is not None:
                return Finding(
                    kind=f"boundary {mismatch.kind}",
                    message=f"input {position} of stage {stage} (microbatch {k}) did not arrive unchanged\n"
                    f"{mismatch.describe()}",
                    mismatch=mismatch,
                    **where,
                )
    text = f"stage {stage} never received all inputs of microbatch {k} in one forward"
    return Finding(kind="boundary mixed", message=text, **where)


def tensors_without_gradient_arrive(evidence: Evidence) -> Iterator[Finding]:
    """Boundary tensors without gradient arrive unchanged, and do not require a gradient where they arrive."""
    yield from boundaries_arrive(evidence)
    carried = evidence.case.model.carried
    silent = [i for i, kind in enumerate(carried, start=1) if kind != "stream"]
    for expected in evidence.runs(Train):
        for s in range(1, evidence.case.num_stages):
            for one in evidence.owners(s):
                for call in shown_step(one, expected.step).forwards:
                    for i in silent if call.stage == s else ():
                        evidence.compared()
                        if i < len(call.requires_grad) and call.requires_grad[i]:
                            text = f"input {i} ({carried[i - 1]}) of stage {s} requires a gradient that no stage needs"
                            yield Finding(
                                kind="boundary requires grad",
                                message=text,
                                step=expected.step,
                                rank=one.rank,
                                stage=s,
                            )
                            return


def compilation_is_named(case: Case, texts: Sequence[str]) -> Iterator[Finding]:
    """A refusal of compiled stages names compilation as the reason; `texts` are the ranks' error messages.

    Ranks without compiled stages may only report that another rank has left.
    """
    if texts and not any("compil" in text.lower() for text in texts):
        yield Finding(
            kind="compilation not named",
            message=f"stages hold compiled modules, but no error says so: {texts[0].strip()[:200]!r}",
        )


def gradients_with_hooks(evidence: Evidence) -> Iterator[Finding]:
    """Gradients are the reference's: a tensor hook that was lost shows there, whatever the counts say."""
    numbers = Numbers(evidence=evidence)
    for expected in evidence.runs():
        for s, right in expected.gradients.items():
            for one in evidence.owners(s):
                mine = shown_step(one, expected.step).gradients.get(s, {})

                def bound(reference: Reference, step: int = expected.step, s: int = s) -> Named:
                    return reference.steps[step].gradient_bounds.get(s, {})

                for name, mismatch in numbers.named(right, mine, bound):
                    yield Finding(
                        kind="gradient with hooks",
                        message=f"the gradient of {name} is not the reference's\n{mismatch.describe()}",
                        step=expected.step,
                        rank=one.rank,
                        stage=s,
                        mismatch=mismatch,
                    )
                    break
