"""Which agents the ranks of a world are placed on."""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.attach.greeting import Identity

__all__ = ["placed", "reason_against"]


def placed(
    agents: Sequence[Identity], size: int, *, load: Sequence[tuple[int, ...]] | None = None
) -> tuple[int, ...]:
    """The index of the agent of each rank.

    Neighbouring ranks are on different hosts if there are several, so that the messages of stages cross
    between them; an agent is used twice only when all are used. Among hosts, and a host's agents, those with the
    least `load` come first, so that the worlds of a run share hundreds of agents and none stays idle.
    """
    burden = [()] * len(agents) if load is None else load
    hosts: dict[tuple[int, str], list[int]] = {}
    for index in sorted(range(len(agents)), key=lambda i: (burden[i], *_order(agents[i]))):
        hosts.setdefault((agents[index].node, agents[index].host), []).append(index)
    columns = list(hosts.values())  # a host's place is that of its agent with the least load
    deepest = max(map(len, columns), default=0)
    row = [column[depth] for depth in range(deepest) for column in columns if depth < len(column)]
    return tuple(row[rank % len(row)] for rank in range(size))


def _order(one: Identity) -> tuple[int, str, int, int]:
    return one.node, one.host, one.rank, one.pid


def reason_against(size: int, *, agents: int, device_type: str, ranks_per_device: int) -> str | None:
    """Why `size` ranks cannot be placed on so many agents; None if they can. A CPU takes any number of ranks."""
    if agents and (device_type == "cpu" or size <= agents * ranks_per_device):
        return None
    share = "" if ranks_per_device == 1 else f" with {ranks_per_device} ranks on each"
    return (
        f"{size} ranks need {-(-size // ranks_per_device)} agents with a {device_type} device{share}, "
        f"{agents} are attached"
    )
