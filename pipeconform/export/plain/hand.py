"""Steps that the user drives by hand: the mistake that is made, and the function `on_pipeline`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeconform.case.by_hand import has_neighbour
from pipeconform.case.case import ByHand, Case, Train
from pipeconform.execute.by_hand import TOLD
from pipeconform.export.plain.aspects import Aspect
from pipeconform.export.plain.refusal import NotPlainError

__all__ = ["hand_changes", "hand_run", "mistakes_text"]

_MADE: Mapping[str, tuple[str, bool, str, bool]] = {
    "weight_first": ("input", True, "weight", False),
    "weight_twice": ("weight", False, "weight", False),
    "weight_unknown": ("input", True, "weight", True),
    "backward_first": ("forward", True, "backward", False),
    "forward_twice": ("forward", False, "forward", False),
    "backward_twice": ("backward", False, "backward", False),
    "forward_unknown": ("forward", True, "forward", True),
    "backward_unknown": ("backward", True, "backward", True),
    "receive_unknown": ("forward", True, "recv_fwd", True),
    "backward_early": ("forward", False, "backward", False),
    "send_early": ("forward", True, "send_fwd", False),
    "finish_early": ("backward", True, "finish", False),
}
"""The operation around which a mistake is made, whether before it, what is called, and whether for microbatch M."""


def _hands(case: Case) -> dict[int, ByHand]:
    hands = {
        i: step.by_hand for i, step in enumerate(case.program) if isinstance(step, Train) and step.by_hand
    }
    if len(hands) < len(case.runs):
        raise NotPlainError("only some steps are driven by hand")
    return hands


def hand_changes(case: Case) -> dict[str, dict[str, str]]:
    """The changes of the copied `operations`: whether backwards are split."""
    hands = list(_hands(case).values())
    if any(one.mixed or one.late or one.whole != hands[0].whole for one in hands):
        raise NotPlainError("backwards are split in different ways")
    whole = hands[0].whole
    changes = {"PART, s, k": '"backward", s, k' if whole else '"input", s, k'}
    changes['            yield from [("weight", s, k)] * (PART == "input")\n'] = (
        "" if whole else '            yield "weight", s, k\n'
    )
    return {"operations": changes}


def mistakes_text(case: Case, placed: tuple[frozenset[int], ...]) -> str:
    """The constant `MISTAKES`: by step, what is due, whether the mistake is made before it, and the mistaken call."""
    ranks = [min(several) for several in placed]
    found = []
    for index, hand in _hands(case).items():
        if not hand.mistake or not has_neighbour(hand.mistake, stage=hand.stage, placed=ranks):
            found.append(f"{index}: (None, True, None)")
            continue
        if hand.mistake not in _MADE:
            raise NotPlainError("a forward before everything else")
        due, before, called, unknown = _MADE[hand.mistake]
        wrong = f'("{called}", {hand.stage}, {"M" if unknown else hand.microbatch})'
        found.append(f'{index}: (("{due}", {hand.stage}, {hand.microbatch}), {before}, {wrong})')
    return "".join(f"    {one},\n" for one in found)


def hand_run(case: Case, aspect: Aspect) -> Iterator[str]:
    """The body of `run` on the pipeline."""
    hands = _hands(case)
    yield "parts = list(zip(*(one.tensor_split(M) for one in batch(step))))"
    yield "for stage in own.values():"
    yield "    stage.has_backward = True"
    yield "    stage.clear_runtime_states()"
    yield "START(parts[0][:-1] if 0 in own else (), {}, parts[0][-1], {})"
    yield "kept, accepted, (due, early, mistake) = {}, None, MISTAKES[step]"
    yield "for operation in operations(own):"
    yield "    for wrongly in (True, False) if early else (False, True):"
    yield "        if wrongly and operation == due:"
    yield "            error = refused(own, *mistake, parts, kept)"
    yield "            accepted = mistake if error is None else accepted"
    if aspect.kind == "by hand":
        told, _, kind = aspect.ended.rpartition(": ")
        steps = [index for index, hand in hands.items() if TOLD.get(hand.mistake) == told]
        of = "" if len(steps) == len(hands) else f"step == {steps[0]} and "
        if kind == "accepted":
            yield f"            if {of}error is None:"
            yield '                found.append(f"{mistake} was carried out, although it is not due")'
        else:
            yield f"            if {of}error is not None and not names_microbatch(error, mistake[2]):"
            yield '                found.append(f"{mistake}, which is not due, says only {error!r}")'
    yield "        elif not wrongly:"
    yield "            error = refused(own, *operation, parts, kept)"
    yield "            if error is not None and accepted != operation:"
    yield "                raise error"
