"""What a program looks at, by what was found: which values after which steps, and how they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Load, Optimize, Train
from pipeconform.export.plain.refusal import NotPlainError

__all__ = ["WAIT", "Aspect", "aspect_of"]

WAIT = 20
"""Seconds after which a rank that waits for another is said to wait for ever."""

_RUNS = (Train, Eval)
_SHARING = (blocks.Shared, blocks.Tied, blocks.Common)
"""Blocks in which one parameter is used together with several others."""
_KEPT: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "gradient": ("gradients(stages)", (Train,)),
    "parameter": ("parameters(stages)", (Train, Optimize, Load)),
    "buffer": ("buffers(stages)", _RUNS),
}


@dataclass(frozen=True, kw_only=True)
class Aspect:
    """What is compared, and when."""

    seen: str = ""
    """An expression: what is kept after a step. Empty if it is looked at in another way, or not at all."""
    after: tuple[type, ...] = ()
    """The kinds of steps after which it is kept."""
    found: str = ""
    """An expression: an iterator over texts about what is wrong. Empty if only the end of a rank counts."""
    returns: str = ""
    """``output`` or ``loss``: what a run must return."""
    kind: str = "values"
    """``values``, ``around`` an evaluation, what is kept ``alive``, the declared ``table``, operations
    called ``by hand``, or the end: ``raised``, ``died``, ``waited``."""
    ended: str = ""
    """The end of a rank that is sought: an exception's type and normalised message, or a signal."""
    chance: bool = False
    """Whether chance decides if a run shows it."""
    lives_on: bool = False
    """Whether a rank that raised goes on living, with its connections open."""
    changes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Changes of copied pieces."""


def aspect_of(case: Case, *, requirement: str, signature: str, status: str) -> Aspect:
    """What to look at for a violation of a requirement with this signature.

    Raises:
        NotPlainError: programs cannot show it.
    """
    if status == "error" and signature.startswith("raised "):
        return Aspect(kind="raised", ended=signature.removeprefix("raised "), chance=case.has(*_SHARING))
    if status == "crashed" and signature.startswith("died: SIG"):
        return Aspect(kind="died", ended=signature.removeprefix("died: "))
    if signature in ("hang", "others left waiting"):
        if requirement == "ERR-10":
            raise NotPlainError("a rank that raised closes the pipeline's connections and lives on")
        return Aspect(kind="waited", lives_on=signature != "hang" or case.is_mistaken)
    if signature == "replicas differ":
        return Aspect(seen="gradients(stages)", after=(Train,), found="differing(on_pipeline(rank))")
    if signature.endswith((": unclear error", ": accepted")) and any(step.by_hand for step in case.trains):
        return Aspect(kind="by hand", ended=signature, found="on_pipeline(rank)")
    found = _of_values(signature) or _of_counts(signature) or _of_states(signature)
    if found is None:
        raise NotPlainError(f"what was found ({signature}) is not seen in the values of a step")
    return found


def _of_values(signature: str) -> Aspect | None:
    if signature == "gradient with hooks" or signature.startswith("gradient of "):
        signature = "gradient value"
    what, _, kind = signature.rpartition(" ")
    compare = {"value": "wrong", "missing": "missing"}.get(kind, "")
    if compare and what in _KEPT:
        seen, after = _KEPT[what]
        return Aspect(
            seen=seen,
            after=after,
            found=f"{compare}(expected, on_pipeline(rank))",
            changes={compare: {"WHAT": what}},
        )
    if signature in ("output value", "output length", "loss value"):
        compare = "longer" if kind == "length" else "wrong"
        return Aspect(
            after=(Train,) if what == "loss" else _RUNS,
            returns=what,
            found=f"{compare}(expected, on_pipeline(rank))",
            changes={"wrong": {"WHAT of {name}": "{name}"}},
        )
    return None


def _of_counts(signature: str) -> Aspect | None:
    if not signature.startswith("hooks ran ") and not signature.endswith((": too many", ": too few")):
        return None
    more = not signature.endswith(("few", "fewer often"))
    counted = {
        "MORE": "more" if more else "less",
        "mine.get(name, 0) > count": f"mine.get(name, 0) {'>' if more else '<'} count",
    }
    return Aspect(
        seen="counts(stages)",
        after=_RUNS,
        found="miscounted(expected, on_pipeline(rank), PLACED.get(rank, ()))",
        changes={"miscounted": counted},
    )


def _of_states(signature: str) -> Aspect | None:
    if signature.startswith("evaluation changed a "):
        what = signature.removeprefix("evaluation changed a ")
        return Aspect(
            kind="around", seen=_KEPT[what][0], found="on_pipeline(rank)", changes={"changed": {"WHAT": what}}
        )
    if signature == "declared table is incomplete":
        return Aspect(kind="table", found="on_pipeline(rank)")
    if signature in ("outputs kept", "boundary tensors beyond the bound"):
        return Aspect(
            kind="alive",
            found="on_pipeline(rank)",
            returns="inputs" if "boundary" in signature else "outputs",
        )
    return None
