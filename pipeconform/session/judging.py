"""The judging part of a run: in its only process, or in each worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.campaign.telling import tell, weights
from pipeconform.campaign.told import Told, Weight
from pipeconform.errors import (
    ContractError,
    HarnessError,
    NoRanksError,
    NothingJudgedError,
    PoolError,
    TooFewAgentsError,
    VariantError,
)
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell
from pipeconform.session.journal import Journal, Known
from pipeconform.session.journaled import Journaled
from pipeconform.spec.selection import select_requirements
from pipeconform.spec.wrappers import any_requirement

__all__ = ["Judging"]

_MOST_WITHOUT_RANKS = 3
"""Cells in a row: each can take as long as ranks may take to start, a minute, and tells nothing."""


class Judging:
    """A campaign that has been started, and the selected cells; `stack` closes everything.

    With a `journal`, cells that are in it are not judged again, and others are added to it.

    Raises:
        UsageError: a wrong implementation, an unknown name, or devices or ranks that are not available.
        HarnessError: processes cannot be started.
    """

    def __init__(
        self,
        options: Options,
        *,
        stack: ExitStack,
        listener: Callable[[Progress], None],
        journal: Journal | None = None,
    ) -> None:
        self._options = options
        self._campaign = stack.enter_context(campaign_of(options))
        self._campaign.listener = listener
        self._columns = self._campaign.target.chosen(options.schedules)
        self._wanted = self._select()
        self._without_ranks = 0
        self._journaled = None if journal is None else self._started(journal)

    def _started(self, journal: Journal) -> Journaled:
        told = self.tell()
        where = told.environment
        journal.check(
            Known(
                implementation=told.implementation,
                schedules=told.schedules,
                max_ranks=told.max_ranks,
                torch=where.torch,
                device=where.device,
                backend=where.backend,
            )
        )
        return Journaled(journal, self._campaign)

    def _select(self) -> frozenset[str]:
        """The selected requirements that are about this kind of implementation."""
        asked = self._options.requirements
        chosen = select_requirements(asked, kind=self._campaign.target.kind)
        left_out = () if asked else self._options.sized().leaves_out
        return frozenset(one for one in chosen if one.partition("-")[0] not in left_out)

    def cells_of(self, requirement: str) -> list[tuple[str, str, str]]:
        """Requirement, schedule and variant of each cell; empty for a requirement that was not selected."""
        if requirement not in self._wanted:
            return []
        variants = self._campaign.variants_of(requirement)
        return [(requirement, schedule, variant) for variant in variants for schedule in self._columns]

    def judge(self, requirement: str, schedule: str, variant: str) -> Cell:
        """Judge one cell, unless it was judged before the run was resumed.

        A cell at which the harness fails is judged once more, with new processes; if it fails again, the cell has the
        status error.

        Raises:
            TooFewAgentsError: there are too few agents left to execute cases.
            NoRanksError: ranks could not be started for this cell and those before it.
        """
        if self._journaled is not None:
            return self._journaled.judged(
                (requirement, schedule, variant), lambda: self._judged(requirement, schedule, variant)
            )
        return self._judged(requirement, schedule, variant)

    def _judged(self, requirement: str, schedule: str, variant: str) -> Cell:
        try:
            cell = self._persistently(requirement, schedule, variant)
        except TooFewAgentsError:
            raise
        except (HarnessError, ContractError) as error:
            self._count_ranks(error)
            reason = str(error) if isinstance(error, ContractError) else f"the harness failed: {error}"
            return Cell(
                requirement=requirement,
                schedule=schedule,
                variant=variant,
                status="error",
                reason=reason,
                case=error.case,
            )
        if cell.executions:
            self._without_ranks = 0
        return cell

    def _persistently(self, requirement: str, schedule: str, variant: str) -> Cell:
        """Judge one cell; if the harness fails, once more with new processes.

        A process that was killed, or a device's service that one process has broken for all others (NVIDIA's
        Multi-Process Service takes no clients until those that it has are gone), says nothing about the cell.
        """
        row = any_requirement(requirement)
        try:
            return judge_cell(self._campaign, row, schedule, variant)
        except (TooFewAgentsError, NothingJudgedError, VariantError):
            raise  # new processes would change nothing
        except HarnessError:
            if self._without_ranks:
                raise  # the cell before it was tried with new processes, too
            self._campaign.discard_processes()
            return judge_cell(self._campaign, row, schedule, variant)

    def _count_ranks(self, error: HarnessError | ContractError) -> None:
        self._without_ranks = self._without_ranks + 1 if isinstance(error, PoolError) else 0
        if self._without_ranks == _MOST_WITHOUT_RANKS:
            raise NoRanksError(
                f"ranks could not be started for {_MOST_WITHOUT_RANKS} cells in a row, so no others were tried; "
                f"the last time: {error}"
            ) from error

    def tell(self) -> Told:
        """A report: the run's description, environment and counts so far."""
        return tell(self._campaign, self._options.schedules)

    def weights(self) -> dict[str, Weight]:
        """How expensive each group of cells is to judge."""
        return weights(self._campaign)
