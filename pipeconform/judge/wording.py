"""What the message of a promised error must name, and what must not have been sent before it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeconform.adapter import MistakeKind
from pipeconform.case.case import Case
from pipeconform.case.mistakes import Mistake
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.exchanged_words import dtype_pattern, exchanged, shape_pattern
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Failed, Structure

if TYPE_CHECKING:
    import torch

__all__ = ["Lacking", "lacking", "names_shape", "names_stage", "sent_wrongly"]

_TENSOR = r"\b(outputs?|inputs?|arguments?|args?|activations?|gradients?|tensors?)\b"
_BATCH = r"(?<![a-z])((micro[-_ ]?)?batch(es)?|samples?|targets?|chunks?|mbs?)(?![a-z])"
"""Part of a name, too: ``num_microbatches``, ``arg_mbs``."""
_WORDS_FOR = {"none": "None", "object": "str", "mapping": "dict"}
"""What an error calls that which is no tensor."""
_BACKWARD = r"backward|input part|weight part|gradient"
_DIRECTIONS = {
    "forward": r"forward",
    "backward": _BACKWARD,
    "loss": r"loss|forward",
    "reduction": rf"{_BACKWARD}|reduc|averag",
}


@dataclass(frozen=True)
class Lacking:
    """What a message does not name: a short name for the signature, and the words that follow "it does not"."""

    kind: str
    text: str


def names_stage(text: str, stage: int) -> bool:
    """Whether the text names a stage, as ``stage 1``, ``Stage 1:`` or ``stage_index=1``."""
    return _names(text, r"stages?(?:[ _]?(?:index|idx|id))?", stage)


def _names(text: str, what: str, number: int) -> bool:
    return re.search(rf"\b{what}\W{{0,3}}{number}\b", text, re.IGNORECASE) is not None


def names_shape(text: str, shape: Sequence[int], *, free: int | None) -> bool:
    """Whether the text names a shape, in any brackets; dimension `free` may be anything."""
    for group in re.findall(r"[\[(]([^\[\]()]*)[\])]", text):
        items = [item.strip() for item in group.split(",") if item.strip()]
        if len(items) == len(shape) and all(
            dim == free or item == str(size)
            for dim, (item, size) in enumerate(zip(items, shape, strict=True))
        ):
            return True
    return False


def lacking(
    case: Case, step: int, mistake: Mistake, failed: Failed, *, rank: int, expected: Evidence
) -> Lacking | None:
    """What the error of a rank does not name; None if it names everything."""
    return next(_lacking(case, step, mistake, failed, rank=rank, expected=expected), None)


def _lacking(
    case: Case, step: int, mistake: Mistake, failed: Failed, *, rank: int, expected: Evidence
) -> Iterator[Lacking]:
    text, kind = failed.text, mistake.kind
    stage = case.num_stages - 1 if mistake.where == "loss" else mistake.stage
    if kind in (MistakeKind.BATCH, MistakeKind.SOURCE):
        if not re.search(_BATCH, text, re.IGNORECASE):
            yield Lacking("batch not named", "say that it is about the batch")
        return
    if kind is MistakeKind.NO_GRADIENTS:
        if not re.search(r"grad|inference.?mode", text, re.IGNORECASE):
            yield Lacking("gradients not named", "say that gradients are switched off")
        return
    if mistake.where != "input" and not names_stage(text, stage):
        yield Lacking("stage not named", f"name stage {stage}")
    if kind is MistakeKind.EXCEPTION:
        pipeline = case.world.pipelines[case.world.pipeline_of(rank) or 0]
        ranks = {rank, pipeline.index(rank)}
        if not any(_names(text, r"rank", one) for one in ranks):
            yield Lacking("rank not named", f"name rank {rank}")
        if not re.search(_DIRECTIONS[mistake.where], text, re.IGNORECASE):
            yield Lacking("direction not named", f"say that it happened in the {mistake.where}")
        from pipeconform.case.build.mistakes import DeliberateError

        if not any(name.rpartition(".")[2] == DeliberateError.__name__ for name, _ in failed.causes):
            yield Lacking("cause lost", "have the model's own exception as its cause")
    if kind in (MistakeKind.EXCEPTION, MistakeKind.GRADIENT):
        which = r"(?:micro[ _-]?batch|chunk)(?:[ _]?(?:index|idx|id))?"
        if mistake.microbatch is not None and not _names(text, which, mistake.microbatch):
            yield Lacking("microbatch not named", f"name microbatch {mistake.microbatch}")
    if kind is MistakeKind.GRADIENT:
        if not re.search(_BACKWARD, text, re.IGNORECASE):
            yield Lacking("direction not named", "say that it happened in the backward")
        return
    if kind is MistakeKind.NO_TENSOR and _WORDS_FOR[mistake.how] not in text:
        yield Lacking("actual not named", f"say what there is instead of a tensor ({mistake.how})")
    if kind is not MistakeKind.EXCEPTION and not re.search(_TENSOR, text, re.IGNORECASE):
        yield Lacking("tensor not named", "say whether it is about an input or an output")
    if kind in (
        MistakeKind.INPUT_SHAPE,
        MistakeKind.OUTPUT_SHAPE,
        MistakeKind.INPUT_DTYPE,
        MistakeKind.OUTPUT_DTYPE,
    ):
        yield from _sides(case, step, mistake, text, expected)


def _sides(case: Case, step: int, mistake: Mistake, text: str, expected: Evidence) -> Iterator[Lacking]:
    """Expected and actual shape or dtype."""
    if mistake.where == "input" and mistake.how in ("batch", "flattened"):
        return  # the number of samples is compared with that of the targets
    from pipeconform.case.build.mistakes import changed

    right = _right(mistake, step, expected)
    wrong = changed(right, mistake.how, batch_dim=case.model.batch_dim)
    if mistake.kind in (MistakeKind.INPUT_DTYPE, MistakeKind.OUTPUT_DTYPE):
        for side, one in (("expected", right), ("actual", wrong)):
            name = str(one.dtype).removeprefix("torch.")
            if name not in text:
                yield Lacking(f"{side} dtype not named", f"name the {side} dtype {name}")
        names = [str(one.dtype).removeprefix("torch.") for one in (right, wrong)]
        if exchanged(text, expected=dtype_pattern(names[0]), actual=dtype_pattern(names[1])):
            yield Lacking("sides exchanged", f"say that {names[0]} was expected and {names[1]} was found")
        return
    free = None if mistake.how == "batch" else case.model.batch_dim
    for side, one in (("expected", right), ("actual", wrong)):
        if not names_shape(text, one.shape, free=free):
            yield Lacking(f"{side} shape not named", f"name the {side} shape {list(one.shape)}")
    shapes = [shape_pattern(one.shape, free=free) for one in (right, wrong)]
    if exchanged(text, expected=shapes[0], actual=shapes[1]):
        sides = f"say that {list(right.shape)} was expected and {list(wrong.shape)} was found"
        yield Lacking("sides exchanged", sides)


def _right(mistake: Mistake, step: int, expected: Evidence) -> torch.Tensor:
    """The right tensor, for the microbatch of the mistake or the first one."""
    consumer = 0 if mistake.where == "input" else mistake.stage + 1
    known = next(one for one in expected.expected.steps if one.step == step)
    return known.inputs[consumer][mistake.microbatch or 0][0].leaves()[0].tensor().to("meta")


def sent_wrongly(evidence: Evidence, step: int, mistake: Mistake) -> str | None:
    """In words, the wrong values on which a later stage computed; None if there were none."""
    if mistake.where not in ("input", "output") or step >= len(evidence.expected.steps):
        return None
    source = 0 if mistake.where == "input" else mistake.stage
    known = evidence.expected.steps[step].inputs
    calls = [
        (one.rank, call)
        for one in evidence.members
        for shown in one.steps
        if shown.step == step
        for call in shown.forwards
    ]
    made = [(call.stage, call.output) for _, call in calls]  # before hooks changed it
    for rank, call in calls:
        if call.stage <= source:
            continue
        right = {_described(inputs) for inputs in known[call.stage]}
        if _described(call.inputs) not in right:
            found = _described(call.inputs)
            return f"stage {call.stage} on rank {rank} was nevertheless given {found}; expected: {' or '.join(right)}"
        if not any(s == call.stage - 1 and output.leaves() == _leaves(call.inputs) for s, output in made):
            return (
                f"stage {call.stage} on rank {rank} was nevertheless given values that stage {call.stage - 1} "
                f"never made"
            )
    return None


def _leaves(inputs: Sequence[Structure]) -> tuple[Array, ...]:
    return tuple(leaf for one in inputs for leaf in one.leaves())


def _described(inputs: Sequence[Structure]) -> str:
    return ", ".join(
        f"{one.array.dtype}{list(one.array.shape)}" if one.array is not None else one.shape()
        for one in inputs
    )
