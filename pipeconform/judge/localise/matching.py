"""Which forwards of a stage belong to which microbatch, even if their inputs are wrong."""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.observe.observation import Forward, Structure

__all__ = ["by_microbatch"]

Inputs = Sequence[tuple[Structure, ...]]
"""What the stage must receive, by microbatch."""


def by_microbatch(forwards: Sequence[Forward], rights: Sequence[Inputs]) -> list[list[int]]:
    """The indices of each microbatch's forwards, in order; `rights` has one entry per legitimate evaluation.

    1. A forward whose inputs equal a microbatch's, bit for bit, is the first of that microbatch.
    2. The remaining forwards have wrong inputs, are repeats or dry runs. The last of them are assigned to the
       remaining microbatches, in order; one that repeats another's inputs only if there is no other.
    3. Repeats that still remain belong to the microbatch whose inputs they repeat.
    """
    m = len(rights[0])
    found: list[list[int]] = [[] for _ in range(m)]
    meant = [
        next((k for k in range(m) if any(right[k] == one.inputs for right in rights)), None)
        for one in forwards
    ]
    left: list[int] = []
    for index, k in enumerate(meant):
        if k is not None and not found[k]:
            found[k].append(index)
        else:
            left.append(index)
    missing = [k for k in range(m) if not found[k]]
    strangers = [index for index in left if meant[index] is None]
    repeats = [index for index in left if meant[index] is not None]
    few = len(missing) - len(strangers)
    chosen = sorted([*strangers[-len(missing) :], *(repeats[-few:] if few > 0 else ())]) if missing else []
    # with fewer forwards than microbatches, it is unknown which are missing: assign them to the first ones
    for k, index in zip(missing, chosen, strict=False):
        found[k].append(index)
    for index in repeats:
        k = meant[index]
        if index not in chosen and k is not None:
            found[k].append(index)
    return found
