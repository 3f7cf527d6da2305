"""Tables in which every send is waited for, as those that torch 2.15 and later read."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.errors import BadTableError
from pipeconform.schedule.actions import SENDS, WAITED_FOR, Action, Kind
from pipeconform.schedule.table import Table, rows_of

_WAIT_FOR = {send: wait for wait, send in WAITED_FOR.items()}


def with_waits(table: Table) -> Table:
    """The table with one wait for each send.

    The wait for an output comes after the backward of the same stage and microbatch, whose data show that the output
    has arrived; what no backward follows is waited for at the end of the rank. So does torch 2.15 where it lowers a
    table (``torch.distributed.pipelining.schedules._add_wait_send``).

    Raises:
        BadTableError: The table has waits already.
    """
    if rows_of(table, WAITED_FOR).any():
        raise BadTableError("the table has waits for sends already")
    return Table.build(
        [_waiting(actions) for actions in table],
        placement=table.placement,
        num_microbatches=table.num_microbatches,
        num_chains=table.num_chains,
    )


def _waiting(actions: tuple[Action, ...]) -> Iterator[Action]:
    pending: dict[Action, Action] = {}
    for action in actions:
        yield action
        for leaf in action.leaves:
            if leaf.kind in SENDS:
                pending[leaf] = leaf._replace(kind=_WAIT_FOR[leaf.kind])
            elif leaf.kind in {Kind.B, Kind.I}:
                wait = pending.pop(leaf._replace(kind=Kind.SEND_F), None)
                if wait is not None:
                    yield wait
    yield from pending.values()
