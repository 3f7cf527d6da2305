"""What a program looks at, by what was found: which values after which steps, and how they are compared."""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.case import blocks
from pipeconform.case.case import Case
from pipeconform.export.plain.refusal import NotPlainError

__all__ = ["Aspect", "aspect_of"]

_RUNS = ("Train", "Eval")
_SHARING = (blocks.Shared, blocks.Tied, blocks.Common)
"""Blocks in which one parameter is used together with several others."""
_KEPT = {
    "gradient": ("gradients(stages)", ("Train",)),
    "parameter": ("parameters(stages)", ("Train", "Optimize", "Load")),
    "buffer": ("buffers(stages)", _RUNS),
}
_OTHERWISE = {"gradient": "gradient value", "kept input changed": "buffer value"}
"""Signatures of values that have words of their own, up to an "of" or "with"."""
_RETURNED = {"output value": "wrong", "loss value": "wrong", "output length": "longer"}


@dataclass(frozen=True, kw_only=True)
class Aspect:
    """What is compared, and when."""

    seen: str = ""
    """An expression: what is kept after a step. Empty if it is looked at in another way, or not at all."""
    after: tuple[str, ...] = ()
    """The kinds of steps after which it is kept."""
    found: str = ""
    """An expression: an iterator over texts about what is wrong. Empty if only the end of a rank counts."""
    returns: str = ""
    """``output`` or ``loss``: what a run must return."""
    kind: str = "values"
    """``values``, ``around`` an evaluation, inputs that are kept ``alive``, the declared ``table``, operations
    called ``by hand``, or the end: ``raised``, ``refused`` on some ranks only, ``died``, ``waited``."""
    what: str = ""
    """What is compared, such as ``gradient``; in counts, ``more`` or ``less``."""
    ended: str = ""
    """The end of a rank that is sought: an exception's type and normalised message, or a signal."""
    chance: bool = False
    """Whether chance decides if a run shows it."""
    lives_on: bool = False
    """Whether a rank that raised goes on living, with its connections open."""

    @property
    def keeps(self) -> bool:
        """Whether steps leave something to compare."""
        return bool(self.seen or self.after)


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
    # of an odd number of ranks, one may not know its mistake
    if signature == "refused on some ranks only" and case.num_ranks % 2 == 0:
        return Aspect(kind="refused")
    if signature == "replicas differ":
        return Aspect(seen="gradients(stages)", after=("Train",), found="differing(on_pipeline(rank))")
    if signature.endswith((": unclear error", ": accepted")) and any(step.by_hand for step in case.trains):
        return Aspect(kind="by hand", ended=signature, found="on_pipeline(rank)")
    if signature == "declared table is incomplete":
        return Aspect(kind="table", found="on_pipeline(rank)")
    if signature == "boundary tensors beyond the bound":
        return Aspect(kind="alive", found="on_pipeline(rank)")
    if signature.startswith(("evaluation changed a ", "evaluation removed a ")):
        what = signature.rsplit(maxsplit=1)[-1]
        return Aspect(kind="around", seen=_KEPT[what][0], found="on_pipeline(rank)", what=what)
    return _of_values(signature)


def _of_values(signature: str) -> Aspect:
    signature = _OTHERWISE.get(signature.replace(" with ", " of ").partition(" of ")[0], signature)
    what, _, kind = signature.rpartition(" ")
    if what in _KEPT and kind in ("value", "missing"):
        seen, after = _KEPT[what]
        compare = "wrong" if kind == "value" else "missing"
        return Aspect(seen=seen, after=after, found=f"{compare}(expected, on_pipeline(rank))", what=what)
    if signature in _RETURNED:
        after = ("Train",) if what == "loss" else _RUNS
        return Aspect(after=after, returns=what, found=f"{_RETURNED[signature]}(expected, on_pipeline(rank))")
    if signature.startswith("hooks ran ") or signature.endswith((": too many", ": too few")):
        what = "less" if signature.endswith(("few", "less often")) else "more"
        # that hooks run in a stage's dry run has a requirement of its own
        dry_runs = int(signature == "hooks ran more often")
        found = f"miscounted(expected, on_pipeline(rank), PLACED.get(rank, ()), {dry_runs=})"
        return Aspect(seen="counts(stages)", after=_RUNS, found=found, what=what)
    raise NotPlainError(f"what was found ({signature}) is not seen in the values of a step")
