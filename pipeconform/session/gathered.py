"""What a run has found so far, and its result file."""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import pipeconform
from pipeconform.campaign.options import Options
from pipeconform.campaign.pairs import pairwise
from pipeconform.campaign.status import with_causes
from pipeconform.campaign.together import meetings
from pipeconform.campaign.told import Told
from pipeconform.errors import PipeconformError
from pipeconform.gate.strict import problems, unexplained
from pipeconform.report.coverage import Coverage
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.rescue import rescued
from pipeconform.report.result import Cell, Expectations, Result, Run, Totals, write_result
from pipeconform.session.journal import Begun
from pipeconform.spec import STANDARD_VERSION, rule_digest
from pipeconform.spec.wrappers import all_requirements

__all__ = ["Gathered"]

_WRITE_EVERY = 2.0  # least seconds between two writes of the unfinished result
_SHARE = 20  # at most one part in so many of the time is spent on writing it


class Gathered:
    """The cells of a run, and what the judging processes reported about themselves.

    `unrestricted` says that only requirements were selected: no schedules, sizes or variants were left out. `begun` is
    what the run's journal says about its beginning.
    """

    def __init__(
        self, options: Options, *, out: Path | None, unrestricted: bool, begun: Begun | None = None
    ) -> None:
        self._options, self._unrestricted = options, unrestricted
        self.file = None if out is None else out / RESULT_NAME
        self.cells: dict[tuple[str, str, str], Cell] = {}
        self.told: list[Told] = []
        """Reports of a distributed run's workers: the first describes the run, and the counts of all are added."""
        self.here: Callable[[], Told] | None = None
        """Returns the report in a run of one process."""
        self.coverage: Coverage | None = None
        """What was executed of the implementation, once the run has ended."""
        self.unwritten: str | None = None
        """Why the result could not be written to `file`."""
        self.last: Result | None = None
        """The last result that was to be written."""
        self.kept: Path | None = None
        """The file in which the last result was actually written."""
        self._id = secrets.token_hex(16) if begun is None else begun.id
        self._before = 0.0 if begun is None else begun.before
        """Seconds that the run had taken when it was resumed."""
        self._begun = self._written = time.monotonic()
        self._took = 0.0

    @property
    def knows_where(self) -> bool:
        """Whether there is anything to write: not before a judging process has started."""
        return bool(self.told) or self.here is not None

    def note(self, cell: Cell) -> None:
        """Keep a cell, and write the unfinished result if the last write was long ago."""
        self.cells[cell.requirement, cell.schedule, cell.variant] = cell
        if time.monotonic() - self._written > max(_WRITE_EVERY, _SHARE * self._took):
            self.write(complete=False)

    def is_not_met(self, cell: Cell) -> bool:
        """Whether a blocked cell counts as not met: not if all that blocks it, judged or not yet, is expected."""
        if self._options.expectations is None:
            return True
        where = [*self.told, *([] if self.here is None else [self.here()])][0].environment
        blockers = {one.blocked_by for one in cell.violations if one.blocked_by}
        judged = [
            self.cells.get((name, cell.schedule, cell.variant)) or _yet_to_judge(name, like=cell)
            for name in blockers
        ]
        entries = self._options.expectations.entries
        return bool(
            unexplained(
                with_causes([cell, *judged], expectations=entries, device=where.device, torch=where.torch)
            )
        )

    def write(self, *, complete: bool) -> None:
        """Write the result file, if one was asked for."""
        if self.file is None:
            return
        begun, self.unwritten = time.monotonic(), None
        try:
            self.last = self.result(complete=complete)
            write_result(self.last, self.file)
            self.kept = self.file
        except PipeconformError as error:
            self.unwritten = str(error)
        self._written = time.monotonic()
        self._took = self._written - begun

    def write_last(self, *, complete: bool) -> None:
        """Write the result at the end of a run; if that fails, a shortened file, or all of it elsewhere."""
        self.write(complete=complete)
        if self.unwritten is None or self.last is None or self.file is None:
            return
        self.kept, what = rescued(self.last, self.file)
        self.unwritten += f"; {what}"

    def result(self, *, complete: bool) -> Result:
        """The result so far, with cells in the order of the standard."""
        told = [*self.told, *([] if self.here is None else [self.here()])]
        executed: dict[str, int] = {}
        ranks: dict[str, int] = {}
        for one in told:
            ranks.update(one.num_ranks)
            for digest, count in one.executed.items():
                executed[digest] = executed.get(digest, 0) + count
        first = told[0]
        cells = with_causes(
            self._in_order(first.schedules),
            expectations=() if self._options.expectations is None else self._options.expectations.entries,
            device=first.environment.device,
            torch=first.environment.torch,
        )
        judged = {cell.requirement for cell in cells}
        reached = {point for one in told for point in one.reached}
        reachable = {point for one in told for point in one.reachable}
        options, sized = self._options, self._options.sized()
        found = Result(
            product_version=pipeconform.__version__,
            standard_version=STANDARD_VERSION,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            environment=first.environment,
            implementation=first.implementation,
            run=Run(
                profile=options.profile,
                seed=options.seed,
                corpus=sized.corpus,
                search=first.search,
                schedules=first.schedules,
                max_ranks=first.max_ranks or options.ranks[1],
                selection=",".join(options.requirements),
                unrestricted=self._unrestricted,
                complete=complete,
                seconds=round(self._before + time.monotonic() - self._begun, 1),
                ids=(self._id,),
            ),
            totals=Totals(
                judgements=sum(cell.judgements for cell in cells),
                # workers report their executions when they end; an interrupted run has only its cells' counts
                executions=max(sum(executed.values()), sum(cell.executions for cell in cells)),
                distinct_cases=max([len(executed), *(cell.distinct_cases for cell in cells)]),
                distinct_cases_several_ranks=sum(ranks[digest] > 1 for digest in executed),
                pairs=pairwise(reached, reachable),
                together=meetings(reached, reachable),
            ),
            cells=cells,
            rules={row.id: rule_digest(row) for row in all_requirements() if row.id in judged},
            coverage=self.coverage,
        )
        return msgspec.structs.replace(found, expectations=self._held_against(found))

    def _in_order(self, schedules: tuple[str, ...]) -> tuple[Cell, ...]:
        order = {row.id: i for i, row in enumerate(all_requirements())}

        def place(cell: Cell) -> tuple[int, bool, str, int]:
            column = schedules.index(cell.schedule)
            return order[cell.requirement], cell.variant != "default", cell.variant, column

        return tuple(sorted(self.cells.values(), key=place))

    def _held_against(self, result: Result) -> Expectations | None:
        file = self._options.expectations
        if file is None:
            return None
        today = datetime.datetime.now(datetime.UTC).date()
        return Expectations(
            file=file.name,
            digest=file.digest,
            entries=len(file.entries),
            problems=problems(file, result, today=today),
        )


def _yet_to_judge(requirement: str, *, like: Cell) -> Cell:
    """Stands for a cell that another one names before it has been judged itself."""
    return Cell(
        requirement=requirement,
        schedule=like.schedule,
        variant=like.variant,
        status="passed",
        judgements=1,
        compared=1,
    )
