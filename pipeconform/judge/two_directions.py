"""Tables of two-direction families, in the terms of the contract.

Such a table has two chains of p stages each: chain 0 goes down the ranks, chain 1 up, and each has half of the
microbatches. The contract has p stages, and places stage s on ranks s and p-1-s. So a stage on the rank of its own
number belongs to chain 0, and on the other rank to chain 1; the engine decides which half a chain gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pipeconform.schedule import Action, Table

__all__ = ["rows_of"]


class Ran(Protocol):
    """What a rank was seen to compute."""

    @property
    def pipeline_rank(self) -> int:
        """Its position in the pipeline."""

    @property
    def actions(self) -> Sequence[Action]:
        """Its computations in order."""


def rows_of(table: Table, ranks: Sequence[Ran]) -> list[list[tuple[Action, ...]]]:
    """For each pipeline rank, the leaves of the actions of a table, with the contract's stages and microbatches.

    Chain 0 and chain 1 get the microbatches of which `ranks` show the forwards in that direction, in ascending order.
    """
    if table.num_chains == 1:
        return [[action.leaves for action in table[rank]] for rank in range(table.num_ranks)]
    shares = [_share(table, ranks, chain) for chain in range(table.num_chains)]

    def renamed(leaf: Action) -> Action:
        chain, stage = divmod(leaf.stage, table.chain_length)
        if leaf.microbatch is None:
            return leaf._replace(stage=stage)
        return leaf._replace(stage=stage, microbatch=shares[chain][leaf.microbatch])

    return [[tuple(map(renamed, action.leaves)) for action in table[rank]] for rank in range(table.num_ranks)]


def _share(table: Table, ranks: Sequence[Ran], chain: int) -> list[int]:
    """The microbatches of a chain; an equal part of all, in order, if the ranks show another number of them."""
    number = table.num_microbatches
    seen = {
        action.microbatch
        for one in ranks
        for action in one.actions
        if action.microbatch is not None and (action.stage == one.pipeline_rank) == (chain == 0)
    }
    return sorted(seen) if len(seen) == number else list(range(chain * number, (chain + 1) * number))
