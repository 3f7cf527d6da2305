"""How far a run is, from its journal alone: reading it changes nothing, and works on any host that sees the folder."""

from __future__ import annotations

import socket
import time
from collections import Counter
from typing import Literal

import msgspec

from pipeconform.campaign.status import with_causes
from pipeconform.ranks.process_tree import started_at
from pipeconform.report.bulletins import Bulletins
from pipeconform.report.result import Cell
from pipeconform.session.journal import Begun, Ended, Journal

__all__ = ["At", "Standing", "State", "standing_of"]

State = Literal["running", "ended", "complete", "interrupted", "silent"]
"""Ended: its process is gone and left no word, as after SIGKILL. Silent: that of another host has given no sign for
`_SILENCE` seconds, so it has probably ended."""
_SILENCE = 300.0  # a hang takes up to two minutes to prove, and a process that waits for agents gives no sign


class At(msgspec.Struct, frozen=True, kw_only=True):
    """What a judging process is doing."""

    process: str
    requirement: str
    schedule: str
    doing: str
    judgements: int
    violations: int
    sign: float
    """Seconds since it last said so."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is."""

    state: State
    host: str
    pid: int
    implementation: str
    seconds: float
    """How long it has judged, without the time between an end and a resumption."""
    sign: float
    """Seconds since the last sign of life of any process."""
    planned: int | None
    """Cells to judge; None before they are collected."""
    cells: tuple[Cell, ...]
    """The judged cells, in the order in which each process judged them."""
    at: tuple[At, ...]
    waiting: dict[str, int]
    """Cells that wait to be judged, by schedule."""


def standing_of(journal: Journal, *, now: float | None = None) -> Standing | None:
    """How far the run with this journal is; None if there is no run.

    Raises:
        BadResultError: the journal is damaged.
    """
    now = time.time() if now is None else now
    begun = journal.begun()
    if begun is None:
        return None
    entries, planned, known, ended = journal.entries(), journal.planned(), journal.known(), journal.ended()
    sign = max(0.0, now - max(begun.at, journal.last_sign()))
    state = _alive(begun, sign=sign) if ended is None else _how(ended)
    until = ended.at if ended is not None else now if state == "running" else now - sign
    return Standing(
        state=state,
        host=begun.host,
        pid=begun.pid,
        implementation="" if known is None else known.implementation.reference,
        seconds=round(begun.before + max(0.0, until - begun.at), 1),
        sign=round(sign, 1),
        planned=None if planned is None else len(planned),
        cells=with_causes(one.cell for one in entries.values()),
        at=_doing(journal) if state in ("running", "silent") else (),
        waiting=dict(Counter(where[1] for where in planned or () if where not in entries)),
    )


def _how(ended: Ended) -> State:
    return "complete" if ended.complete else "interrupted"


def _alive(begun: Begun, *, sign: float) -> State:
    if begun.host == socket.gethostname() and begun.started:
        return "running" if started_at(begun.pid) == begun.started else "ended"
    return "running" if sign < _SILENCE else "silent"


def _doing(journal: Journal) -> tuple[At, ...]:
    bulletins = Bulletins(journal.folder)
    return tuple(
        At(
            process=name,
            requirement=one.requirement,
            schedule=one.schedule,
            doing=one.doing,
            judgements=one.judged,
            violations=one.violations,
            sign=round(bulletins.since(name), 1),
        )
        for name, one in bulletins.read().items()
    )
