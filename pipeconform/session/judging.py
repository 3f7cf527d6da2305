"""The part of a run that judges: in its only process, or in each of its workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.campaign.telling import tell, weights
from pipeconform.campaign.told import Told, Weight
from pipeconform.errors import ContractError, HarnessError, TooFewAgentsError
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell
from pipeconform.spec.selection import select_requirements
from pipeconform.spec.wrappers import any_requirement

__all__ = ["Judging"]


class Judging:
    """A campaign that has been started, and the cells that were asked for; all ends with `stack`.

    Raises:
        UsageError: a wrong implementation, or a name, a device or a number of ranks that it does not know or have.
        HarnessError: processes cannot be started.
    """

    def __init__(self, options: Options, *, stack: ExitStack, listener: Callable[[Progress], None]) -> None:
        self._options = options
        self._campaign = stack.enter_context(campaign_of(options))
        self._campaign.listener = listener
        self._columns = self._campaign.target.chosen(options.schedules)
        self._wanted = self._select()

    def _select(self) -> frozenset[str]:
        """What there is to ask depends on what the implementation is."""
        asked = self._options.requirements
        chosen = select_requirements(asked, kind=self._campaign.target.kind)
        left_out = () if asked else self._options.sized().leaves_out
        return frozenset(one for one in chosen if one.partition("-")[0] not in left_out)

    def cells_of(self, requirement: str) -> list[tuple[str, str, str]]:
        """Requirement, schedule and variant of each cell; empty for a requirement that was not asked for."""
        if requirement not in self._wanted:
            return []
        variants = self._campaign.variants_of(requirement)
        return [(requirement, schedule, variant) for variant in variants for schedule in self._columns]

    def judge(self, requirement: str, schedule: str, variant: str) -> Cell:
        """Judge one cell; what the harness could not do is an error of the cell.

        Raises:
            TooFewAgentsError: there is nobody left to execute cases.
        """
        try:
            return judge_cell(self._campaign, any_requirement(requirement), schedule, variant)
        except TooFewAgentsError:
            raise
        except (HarnessError, ContractError) as error:
            reason = str(error) if isinstance(error, ContractError) else f"the harness failed: {error}"
            return Cell(
                requirement=requirement, schedule=schedule, variant=variant, status="error", reason=reason
            )

    def tell(self) -> Told:
        """What has been judged so far, where, and on how many cases."""
        return tell(self._campaign, self._options.schedules)

    def weights(self) -> dict[str, Weight]:
        """By group of cells what it costs to judge."""
        return weights(self._campaign)
