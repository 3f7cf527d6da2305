"""Tables from text."""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.schedule import Action, Table

__all__ = ["table"]


def table(*ranks: str, placement: Sequence[int] = (0, 1), m: int = 1, num_chains: int = 1) -> Table:
    """A table of `m` microbatches; each rank's actions are one string."""
    actions = [[Action.parse(word) for word in rank.split()] for rank in ranks]
    return Table.build(actions, placement=placement, num_microbatches=m, num_chains=num_chains)
