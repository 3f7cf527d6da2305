"""All schedule families, one small file each, and the registry to find them by name.

BPipe moves activations between ranks, for which the language has no action, so its table is 1F1B's; see `bpipe`.
"""

from __future__ import annotations

from pipeconform.errors import UnknownNameError
from pipeconform.schedule.families import (
    bpipe,
    chimera,
    dualpipe,
    forward_only,
    gpipe,
    hanayo,
    interleaved_one_f_one_b,
    interleaved_zero_bubble,
    looped_bfs,
    one_f_one_b,
    v_shapes,
    zb_h2,
    zb_v,
)
from pipeconform.schedule.families.family import Bubble, Family, Size, Stage
from pipeconform.schedule.table import Table

_FAMILIES: dict[str, Family] = {
    item.name: item
    for item in (
        bpipe.FAMILY,
        chimera.FAMILY,
        dualpipe.DUALPIPE,
        dualpipe.DUALPIPE_V,
        forward_only.FAMILY,
        gpipe.FAMILY,
        hanayo.FAMILY,
        interleaved_one_f_one_b.FAMILY,
        interleaved_one_f_one_b.MEGATRON,
        interleaved_zero_bubble.FAMILY,
        interleaved_zero_bubble.ZB_H1,
        looped_bfs.FAMILY,
        one_f_one_b.FAMILY,
        v_shapes.V_HALF,
        v_shapes.V_MIN,
        zb_h2.FAMILY,
        zb_v.FAMILY,
    )
}


def families() -> tuple[Family, ...]:
    """All families, by name."""
    return tuple(_FAMILIES[name] for name in sorted(_FAMILIES))


def family(name: str) -> Family:
    """One family.

    Raises:
        UnknownNameError: There is no such family; the message lists similar names.
    """
    if name not in _FAMILIES:
        titles = {one.title: one.name for one in _FAMILIES.values()}
        raise UnknownNameError(
            "schedule family", name, _FAMILIES, aliases=titles, listed_by="pipeconform schedule list"
        )
    return _FAMILIES[name]


def generate(name: str, *, num_ranks: int, stages_per_rank: int = 1, num_microbatches: int) -> Table:
    """The compute-only table of a family; `pipeconform.schedule.lower` adds the communication.

    Raises:
        UnknownNameError: There is no such family.
        UsageError: The family has no table of this size.
    """
    return family(name).generate(
        num_ranks=num_ranks, stages_per_rank=stages_per_rank, num_microbatches=num_microbatches
    )


__all__ = ["Bubble", "Family", "Size", "Stage", "families", "family", "generate"]
