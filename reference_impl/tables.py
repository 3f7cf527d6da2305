"""Which schedules the reference offers, and the tables it carries out for them.

The training tables come from ``pipeconform.schedule.families``; the runtime carries out whatever they
say. Common schedules have torch's names, and a file's name means the table in it. Evaluation needs
one table only, for any placement.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeconform.adapter import MicrobatchRule, Placement, ScheduleClaim
from pipeconform.schedule import Action, Kind, Table, from_csv, generate, lower, read_table, to_csv, verify

FILES = (".csv", ".json")
"""The suffixes of files with tables."""
SEVERAL = (1, 2, 3, 4)


@dataclass(frozen=True)
class Offer:
    """A schedule's claim, and the family that generates its table."""

    claim: ScheduleClaim
    family: str


_OFFERS = (
    Offer(ScheduleClaim(name="ForwardOnly", stages_per_rank=SEVERAL, trains=False), "forward_only"),
    Offer(ScheduleClaim(name="GPipe"), "gpipe"),
    Offer(ScheduleClaim(name="1F1B"), "one_f_one_b"),
    Offer(
        ScheduleClaim(
            name="Interleaved1F1B", stages_per_rank=SEVERAL, microbatches=MicrobatchRule.WHOLE_ROUNDS
        ),
        "interleaved_one_f_one_b",
    ),
    Offer(
        ScheduleClaim(
            name="Interleaved1F1B-Megatron",
            stages_per_rank=SEVERAL,
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
        ),
        "interleaved_one_f_one_b_megatron",
    ),
    Offer(ScheduleClaim(name="LoopedBFS", stages_per_rank=SEVERAL), "looped_bfs"),
    Offer(
        ScheduleClaim(
            name="InterleavedZeroBubble",
            stages_per_rank=SEVERAL,
            microbatches=MicrobatchRule.WHOLE_ROUNDS,
            split_backward=True,
        ),
        "interleaved_zero_bubble",
    ),
    Offer(ScheduleClaim(name="ZB-H1", split_backward=True), "zb_h1"),
    Offer(ScheduleClaim(name="ZB-H2", split_backward=True), "zb_h2"),
    Offer(
        ScheduleClaim(name="ZBVZeroBubble", placement=Placement.V, stages_per_rank=(2,), split_backward=True),
        "zb_v",
    ),
    Offer(
        ScheduleClaim(name="V-Half", placement=Placement.V, stages_per_rank=(2,), split_backward=True),
        "v_half",
    ),
    Offer(
        ScheduleClaim(name="V-Min", placement=Placement.V, stages_per_rank=(2,), split_backward=True), "v_min"
    ),
    Offer(
        ScheduleClaim(
            name="DualPipeV",
            placement=Placement.V,
            stages_per_rank=(2,),
            min_microbatches_per_stage=1,
            split_backward=True,
        ),
        "dualpipe_v",
    ),
    Offer(
        ScheduleClaim(
            name="Hanayo",
            placement=Placement.V,
            stages_per_rank=(2, 4),
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
        ),
        "hanayo",
    ),
)

OFFERS: Mapping[str, Offer] = {
    offer.claim.name: replace(offer, claim=replace(offer.claim, family=offer.family)) for offer in _OFFERS
}
"""By the schedule's name."""


def training_table(name: str, *, num_ranks: int, stages_per_rank: int, num_microbatches: int) -> Table:
    """The lowered table of one training step.

    Receives come *late*, right before the action that needs them, because the runtime's receives wait.

    Raises:
        ValueError: The schedule does not train, or has no table of this size.
        BadTableError: `name` is a file that cannot be read.
    """
    if name.endswith(FILES):
        return _table_in(Path(name), num_ranks=num_ranks, num_microbatches=num_microbatches)
    offer = OFFERS[name]
    if not offer.claim.trains:
        raise ValueError(f"{name} evaluates only")
    _require_size(
        name, num_ranks=num_ranks, stages_per_rank=stages_per_rank, num_microbatches=num_microbatches
    )
    table = generate(
        offer.family,
        num_ranks=num_ranks,
        stages_per_rank=stages_per_rank,
        num_microbatches=num_microbatches,
    )
    return lower(table, receives="late")


def given_table(text: str, *, placement: tuple[int, ...], num_ranks: int, num_microbatches: int) -> Table:
    """The lowered table of one training step in the user's own order; receives come late, as above.

    Raises:
        ValueError: It is for another number of ranks, or cannot be carried out with m = `num_microbatches`.
        BadTableError: It cannot be read, or its computations wait for one another.
    """
    name = "the plan's table"
    table = from_csv(text, name=name, placement=placement, num_microbatches=num_microbatches)
    if table.num_ranks != num_ranks:
        raise ValueError(f"{name} is for p={table.num_ranks} ranks, not for p={num_ranks}")
    return lower(_checked(table, name), receives="late")


def evaluation_table(placement: tuple[int, ...], *, num_ranks: int, num_microbatches: int) -> Table:
    """The lowered table of one evaluation step, for any placement (stage → rank) and any m.

    Every rank runs its stages in ascending order, each over all microbatches.
    """
    ranks = [
        [
            Action(s, Kind.F, k)
            for s, owner in enumerate(placement)
            if owner == rank
            for k in range(num_microbatches)
        ]
        for rank in range(num_ranks)
    ]
    return lower(Table.build(ranks, placement=placement, num_microbatches=num_microbatches), receives="late")


@functools.lru_cache(maxsize=64)
def actions_of(
    name: str,
    *,
    placement: tuple[int, ...],
    num_ranks: int,
    rank: int,
    num_microbatches: int,
    training: bool,
    given: str | None,
    rewritten: bool,
) -> tuple[Action, ...]:
    """The actions of one rank in one step; `given` is the user's own table of training steps.

    If `rewritten`, the table of a training step is written to a file and read again, with its messages.

    Raises:
        ValueError: As for `training_table` or `given_table`, or the schedule needs another placement.
    """
    if not training:
        table = evaluation_table(placement, num_ranks=num_ranks, num_microbatches=num_microbatches)
        return table[rank]
    if given is not None:
        sizes = {"num_ranks": num_ranks, "num_microbatches": num_microbatches}
        table = given_table(given, placement=placement, **sizes)
        return (_read_again(table) if rewritten else table)[rank]
    table = training_table(
        name,
        num_ranks=num_ranks,
        stages_per_rank=len(placement) // num_ranks,
        num_microbatches=num_microbatches,
    )
    if table.placement != placement:
        raise ValueError(f"{name} places its stages on ranks {table.placement}, not {placement}")
    return (_read_again(table) if rewritten else table)[rank]


def _read_again(table: Table) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        path.write_text(to_csv(table), newline="")
        return from_csv(
            path.read_text(),
            name="the written table",
            placement=table.placement,
            num_microbatches=table.num_microbatches,
        )


def _table_in(file: Path, *, num_ranks: int, num_microbatches: int) -> Table:
    table = read_table(file)
    if (table.num_ranks, table.num_microbatches) != (num_ranks, num_microbatches):
        raise ValueError(
            f"the table in {file} is for p={table.num_ranks} ranks and m={table.num_microbatches} microbatches, "
            f"not for p={num_ranks}, m={num_microbatches}"
        )
    if not table.has_communication and num_ranks > 1:
        table = lower(table, receives="late")
    return _checked(table, f"the table in {file}")


def _checked(table: Table, name: str) -> Table:
    if wrong := verify(table):
        raise ValueError(f"{name} cannot be carried out: {wrong[0]}")
    return table


def _require_size(name: str, *, num_ranks: int, stages_per_rank: int, num_microbatches: int) -> None:
    fits = OFFERS[name].claim.takes(
        num_ranks=num_ranks, stages_per_rank=stages_per_rank, num_microbatches=num_microbatches
    )
    if not fits:
        raise ValueError(
            f"{name} has no table for p={num_ranks} ranks, v={stages_per_rank} stages per rank, "
            f"m={num_microbatches} microbatches"
        )
