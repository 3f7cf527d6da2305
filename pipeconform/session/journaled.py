"""Judging with a journal: what is in it is not judged again, and what is judged is added to it."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeconform.campaign.campaign import Campaign
from pipeconform.report.result import Cell
from pipeconform.session.journal import Entry, Journal, Where

__all__ = ["Journaled"]


class Journaled:
    """The journal of a run in a process that judges `campaign`."""

    def __init__(self, journal: Journal, campaign: Campaign) -> None:
        self._campaign = campaign
        self._kept = journal.entries()
        self._writer = journal.writer()
        begun = journal.begun()
        self._before = 0.0 if begun is None else begun.before
        self._at = time.time() if begun is None else begun.at

    def judged(self, where: Where, judge: Callable[[], Cell]) -> Cell:
        """The cell as it was judged before the run was resumed, or as `judge` returns it now.

        A cell that the harness could not judge is not kept, so that a resumed run tries it again.
        """
        kept = self._kept.get(where)
        if kept is not None:
            self._count(kept)
            return kept.cell
        executed, points = dict(self._campaign.executed), frozenset(self._campaign.points)
        cell = judge()
        if cell.is_broken:
            return cell
        more = {
            digest: number - executed.get(digest, 0)
            for digest, number in self._campaign.executed.items()
            if number != executed.get(digest, 0)
        }
        self._writer.add(
            Entry(
                cell=cell,
                executed=more,
                num_ranks={digest: self._campaign.num_ranks[digest] for digest in more},
                points=tuple(sorted(self._campaign.points - points)),
                elapsed=round(self._before + time.time() - self._at, 3),
            )
        )
        return cell

    def _count(self, entry: Entry) -> None:
        for digest, number in entry.executed.items():
            self._campaign.executed[digest] = self._campaign.executed.get(digest, 0) + number
        self._campaign.num_ranks.update(entry.num_ranks)
        self._campaign.points |= set(entry.points)
