"""The pytest hooks of a run, which collect the cells, show progress, and decide how pytest ends.

With pytest-xdist every worker judges its share and sends its cells with the test reports; the controller, which does
not judge and starts no rank processes, gathers them. If a worker crashes, the cells that it was judging are reported as
errors.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from pipeconform.campaign.told import Told, Weight, group_of
from pipeconform.errors import ContractError, HarnessError, NoRanksError, TooFewAgentsError, UsageError
from pipeconform.gate.strict import unexplained
from pipeconform.ranks.cores import Cores
from pipeconform.ranks.interrupts import remembered_interrupts
from pipeconform.ranks.prestart import drop_ahead
from pipeconform.report.bulletins import Bulletins
from pipeconform.report.result import Cell, Result, decode_cell
from pipeconform.session.cache_folder import keep_hypothesis_files
from pipeconform.session.coverage import coverage_in, require_coverage
from pipeconform.session.gathered import Gathered
from pipeconform.session.importing import without_collecting
from pipeconform.session.items import CELL, SuiteItem, ViolatedError
from pipeconform.session.journal import Journal, Where
from pipeconform.session.junit import record_causes
from pipeconform.session.options import distributes, is_worker, options_of
from pipeconform.session.share import Refusal, Share, Started
from pipeconform.showing import shown, shown_json, shown_line
from pipeconform.supported import import_torch, require_supported_torch, torch_version, why_untested

if TYPE_CHECKING:
    from pipeconform.attach.session import Attach
    from pipeconform.report.progress import Progress
    from pipeconform.report.terminal import LiveView
    from pipeconform.session.judging import Judging

__all__ = ["PytestRun"]

_WATCHED = (
    1.0  # least seconds between two notes of what a process is doing, for those who watch from elsewhere
)
_ALONE = "run"
"""Names the only process of a run that is not distributed."""
_MOST_ENDS = 2  # workers that may end in a row before anything is judged, times the number of workers


class PytestRun:
    """The run's state and its pytest hooks."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        try:
            require_supported_torch()
            self.options = options_of(config)
            if config.getoption("pipeconform_coverage"):
                require_coverage()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        self.out = Path(config.getoption("pipeconform_out")) if config.getoption("pipeconform_out") else None
        self.is_worker, self.distributes = is_worker(config), distributes(config)
        folder = config.getoption("pipeconform_journal")
        self.journal = None if folder is None else Journal(Path(folder))
        self._watched = None if folder is None else Bulletins(Path(folder), every=_WATCHED)
        self._worker = _ALONE
        self.gathered = Gathered(
            self.options,
            begun=None if self.journal is None else self.journal.begun(),
            out=None if self.is_worker else self.out,
            unrestricted=not self.options.schedules and not config.getoption("keyword"),
        )
        self.view: LiveView | None = None
        self.interrupted = False
        self._interrupts: remembered_interrupts | None = None
        """Knows whether an interrupt came, in a session that judges in this process."""
        self.complete = False
        """Whether every cell was judged, at the end."""
        self._found: Result | None = None
        """The result at the end."""
        self._judging: Judging | None = None
        """What judges; None in the controller of a distributed run."""
        self._ends = 0
        """Workers that have ended since a cell was judged."""
        self._weights: dict[str, Weight] = {}
        """How expensive each group of cells is."""
        keep_hypothesis_files()
        self._stack = ExitStack()
        self._check_out()
        self._share = self._shared(config)
        self._coverage = self._measured(config)
        if not self.is_worker and config.getoption("pipeconform_live"):
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                config.pluginmanager.unregister(reporter)

    # ------------------------------------------------------------------ set-up

    def _shared(self, config: pytest.Config) -> Share | None:
        """The folder that all workers of a distributed run share."""
        if self.is_worker:
            given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
            share = Share(Path(given["pipeconform_share"]))
            self._worker, self._workers = str(given["workerid"]), given["workercount"]
            self._bulletins = Bulletins(share.folder)
            self._cores = Cores(workers=self._workers)
            self._stack.callback(self._cores.release)
            return share
        if not self.distributes:
            return None
        share = Share.made(out=self.out)
        self._stack.callback(share.remove)
        return share

    def _measured(self, config: pytest.Config) -> Path | None:
        """The folder in which ranks record what they execute; None if they do not."""
        if not config.getoption("pipeconform_coverage"):
            return None
        if self._share is not None:
            return self._share.coverage
        folder = tempfile.TemporaryDirectory(prefix="pipeconform-")
        self._stack.callback(folder.cleanup)
        return Path(folder.name)

    def _check_out(self) -> None:
        """Refuse, before anything is judged, a folder that cannot be written."""
        if self.out is None or self.is_worker:
            return
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.out):
                pass
        except OSError as error:
            raise pytest.UsageError(
                f"cannot write results to {self.out}: {error.strerror or error}; choose another --out"
            ) from error

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Start judging, and refuse a wrong adapter or schedule before anything is collected.

        During collection a usage error would count as a broken suite. A worker cannot refuse a run, so it reports the
        error to the controller and ends.
        """
        if self.distributes:
            return
        if not self.is_worker:
            self._interrupts = self._stack.enter_context(remembered_interrupts())
        try:
            self._judging = self._start_judging()
        except (UsageError, ContractError, HarnessError) as error:
            refusal = _refusal_of(error)
            if not self.is_worker:
                _refuse(refusal)
            self._in_folder.say(self._worker, refusal)
            raise pytest.UsageError(refusal.text) from error
        if self.is_worker:
            self._in_folder.say(self._worker, Started(self._judging.tell(), self._judging.weights()))
        else:
            self.gathered.here = self._judging.tell

    def _start_judging(self) -> Judging:
        with without_collecting():
            import_torch()
            from pipeconform.session.judging import Judging

        if self._share is None:
            shared, earlier = None, self.gathered.file
        else:  # the result file may already contain cells of other workers
            shared, earlier = self._share.folder, self._share.earlier
        if self.journal is not None:  # or those of this run before it was resumed
            earlier = self.journal.earlier
        options = dataclasses.replace(
            self.options, share=shared, earlier=earlier, coverage=self._coverage, attach=self._attach()
        )
        return Judging(options, stack=self._stack, listener=self._progress, journal=self.journal)

    def _attach(self) -> Attach | None:
        """Where this process listens for agents: each worker of a distributed run has agents of its own."""
        attach = self.options.attach
        if attach is None or not self.is_worker:
            return attach
        lease = self._stack.enter_context(self._in_folder.part(workers=self._workers))
        return attach.of_part(lease.indices[0])

    @property
    def _in_folder(self) -> Share:
        assert self._share is not None, "workers and their controller share a folder"
        return self._share

    @property
    def judging(self) -> Judging:
        """What judges, in a judging process."""
        assert self._judging is not None, "the session has begun, and the controller collects nothing"
        return self._judging

    def close(self) -> None:
        """End processes and remove temporary files."""
        drop_ahead()
        self._stack.close()

    @staticmethod
    def pytest_report_header() -> str | None:
        """Warn about a torch that is not tested; a live run has said so already."""
        warning = why_untested(torch_version())
        return None if warning is None else f"pipeconform: {warning}"

    # ------------------------------------------------------------------ judging

    def judge(self, item: SuiteItem) -> None:
        """Judge one cell; fail, skip or pass the test accordingly."""
        if self.is_worker:
            self._cores.share_among(self._workers - self._in_folder.num_ended())
        try:
            cell = self.judging.judge(*item.cell)
        except (NoRanksError, TooFewAgentsError) as error:
            self._give_up(_refusal_of(error))
        item.user_properties.append((CELL, shown_json(msgspec.json.encode(cell).decode())))  # for junit.xml
        if cell.status in ("not_claimed", "skipped", "nothing_compared", "blocked"):
            pytest.skip(shown_line(f"{cell.status}: {cell.reason}"))
        if cell.is_expected:
            labels = dict.fromkeys(violation.expected for violation in cell.violations)
            pytest.xfail(shown_line(f"expected: {', '.join(labels)}"))
        if cell.status != "passed":
            from pipeconform.report.text import describe_cell, headline

            raise ViolatedError(shown_line(headline(cell)), shown(describe_cell(cell)))

    def _give_up(self, refusal: Refusal) -> NoReturn:
        """End the run in the middle."""
        if not self.is_worker:
            _refuse(refusal)
        self._in_folder.say(self._worker, refusal)
        self.close()
        os._exit(3)  # xdist handles a worker that is gone, but not one that ends its session early

    def _progress(self, progress: Progress) -> None:
        if self._watched is not None:
            self._watched.post(self._worker, progress)
        if self.view is not None:
            self.view.progress(progress)
        elif self.is_worker:
            self._bulletins.post(self._worker, progress)

    # ------------------------------------------------------------------ gathering

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker the path of the shared folder (xdist)."""
        node.workerinput["pipeconform_share"] = str(self._in_folder.folder)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Gather a worker's last report, and count workers that end without judging anything (xdist)."""
        told = getattr(node, "workeroutput", {}).get("pipeconform")
        if told is not None:
            self.gathered.told.append(msgspec.json.decode(told, type=Told))
        if error is None:
            return
        worker = node.gateway.id
        said = self._in_folder.said(worker)
        if isinstance(said, Refusal) and (said.is_usage or said.lacks_ranks or not self.gathered.cells):
            _refuse(said)
        Bulletins(self._in_folder.folder).remove(worker)
        self._ends += 1
        if self._ends > _MOST_ENDS * len(self.config.getoption("tx")):
            pytest.exit(
                f"the harness failed: {self._ends} workers ended one after another without judging anything; "
                f"is there enough memory? A run without -n shows what ends them",
                returncode=3,
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep schedules together, those with the largest worlds and the most cells first (xdist)."""
        from pipeconform.session.packing import scheduling

        return scheduling(config, log, group=_group_of_test, weights=self._weights)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Let another worker judge a cell whose worker ended; it does not count as a failure yet (xdist)."""
        given_up = getattr(sched, "given_up", None)
        if given_up is not None and not given_up(crashitem):
            path, line, _ = report.location
            report.outcome = "skipped"
            report.longrepr = (path, line or 0, "its worker ended; another judges it once more")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the cell in a report; a report without a cell becomes an error of its cell."""
        if self.is_worker:
            return
        carried = [value for key, value in report.user_properties if key == CELL]
        if carried and report.when == "call":
            self._note(decode_cell(str(carried[-1])))
        elif report.failed and not carried and "[" in report.nodeid:
            parts = _cell_of(report.nodeid)
            if len(parts) == 3:
                text = f"the harness failed: {_crash_of(report)}"
                self._note(
                    Cell(
                        requirement=parts[0], schedule=parts[1], variant=parts[2], status="error", reason=text
                    )
                )

    def _note(self, cell: Cell) -> None:
        self._ends = 0
        self.gathered.note(cell)  # first, in case the user sees the cell and interrupts
        if self.view is not None:
            self.view.cell(cell)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """Stop before the next cell where the exception of an interrupt was lost, as in a callback of the collector."""
        if self._interrupts is not None and self._interrupts.asked:
            raise KeyboardInterrupt

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that the run is not complete."""
        self.interrupted = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Choose the cells that were to be judged when the run began; ``--lf`` would choose others now."""
        planned = None if self.journal is None else self.journal.planned()
        if planned is None:
            return
        wanted = set(planned)
        found = [item for item in items if isinstance(item, SuiteItem) and item.cell in wanted]
        if len(found) < len(items):
            kept = set(map(id, found))
            config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
            items[:] = found

    # ------------------------------------------------------------------ the live view

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what is to be judged, and begin to show progress."""
        if not self.is_worker:
            self._plan([item.cell for item in session.items if isinstance(item, SuiteItem)])
        self._begin_view([item.cell for item in session.items if isinstance(item, SuiteItem)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Read how a worker started, and begin to show progress; all workers collect the same tests (xdist)."""
        said = self._in_folder.said(node.gateway.id)
        if isinstance(said, Started) and not self.gathered.told:
            self.gathered.told.append(said.told)
            self._weights.update(said.weights)
        parts = map(_cell_of, ids)
        cells = [(cell[0], cell[1], cell[2]) for cell in parts if len(cell) == 3]
        self._plan(cells)
        self._begin_view(cells)

    def _plan(self, cells: list[Where]) -> None:
        if self.journal is not None and cells:
            self.journal.plan(cells)

    def _begin_view(self, cells: list[Where]) -> None:
        wanted = self.config.getoption("pipeconform_live") and not self.is_worker
        if not wanted or not cells or self.view is not None:
            return
        from pipeconform.report.console import SafeConsole
        from pipeconform.report.terminal import LiveView

        self.view = LiveView(
            SafeConsole(),
            cells=Counter(requirement for requirement, _, _ in cells),
            schedules=Counter(schedule for _, schedule, _ in cells) if self.distributes else {},
            implementation=self.options.implementation,
            profile=self.options.profile,
            workers=dict if self._share is None else Bulletins(self._share.folder).read,
        )
        self.view.start()

    # ------------------------------------------------------------------ the end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the result and decide the exit status."""
        if self.is_worker:
            self._end_worker()
            return
        if self.view is not None:
            self.view.stop()
        cells = self.gathered.cells.values()
        judged = any(cell.is_judged for cell in cells)
        failed = any(cell.is_broken for cell in cells)
        came_through = session.exitstatus in (0, 1, 5)
        complete = came_through and not (self.interrupted or session.shouldfail or session.shouldstop)
        self.complete = complete and not failed
        if self._coverage is not None:
            self.gathered.coverage = coverage_in(self._coverage)
        if self.gathered.knows_where:
            self.gathered.write_last(complete=complete)
            self._found = self.gathered.last or self.gathered.result(complete=complete)
        if self.gathered.last is not None:
            record_causes(self.config, self.gathered.last)
            if self.view is not None:
                self.view.settle(self.gathered.last.cells)
        if not self.interrupted and came_through and (failed or self.gathered.unwritten or not judged):
            session.exitstatus = 3
        elif session.exitstatus == 0 and (unexplained(cells) or self._file_is_wrong()):
            session.exitstatus = 1

    def _end_worker(self) -> None:
        """Report what was judged, and end processes to leave the cores to other workers."""
        if self._watched is not None:
            self._watched.remove(self._worker)
        self._bulletins.remove(self._worker)
        self._cores.release()
        self._in_folder.end(self._worker)
        if self._judging is not None:
            output: dict[str, str] = self.config.workeroutput  # type: ignore[attr-defined]
            output["pipeconform"] = msgspec.json.encode(self._judging.tell()).decode()

    def _file_is_wrong(self) -> bool:
        held = None if self._found is None else self._found.expectations
        return held is not None and bool(held.problems)

    def pytest_terminal_summary(self) -> None:
        """Add to pytest's own summary: the table, what was not claimed, where the results are."""
        if self.config.getoption("pipeconform_live") or not self.gathered.cells or self._found is None:
            return
        from pipeconform.report.console import SafeConsole
        from pipeconform.report.summary import render_overview

        console = SafeConsole()
        console.print()
        verbose = self.config.get_verbosity() > 0
        render_overview(self._found, console, where=self.gathered.file, verbose=verbose)
        kept = "not kept; --pipeconform-out DIR keeps them, and replay needs them"
        console.print(
            f"results: {self.gathered.unwritten or self.gathered.file or kept}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )


def _refusal_of(error: UsageError | ContractError | HarnessError) -> Refusal:
    return Refusal(
        f"the harness failed: {error}" if isinstance(error, HarnessError) else str(error),
        is_usage=isinstance(error, UsageError),
        lacks_ranks=isinstance(error, NoRanksError | TooFewAgentsError),
    )


def _refuse(refusal: Refusal) -> NoReturn:
    """End the run with a message."""
    if refusal.is_usage:
        raise pytest.UsageError(refusal.text)
    pytest.exit(refusal.text, returncode=3)


def _group_of_test(nodeid: str) -> str:
    """The name of a test's group; a test that judges no cell is a group of its own."""
    parts = _cell_of(nodeid)
    return group_of(*parts[:2]) if len(parts) == 3 else nodeid


def _cell_of(nodeid: str) -> list[str]:
    """Requirement, schedule and variant in the id of a test; xdist appends its group after an @, before pytest 9.2."""
    return nodeid.rpartition("[")[2].partition("]")[0].split(":")


def _crash_of(report: pytest.TestReport) -> str:
    """The exception that ended a test, in one line instead of a traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return "\n".join(report.longreprtext.strip().splitlines()[-5:])
    return f"{crash.message.partition(chr(10))[0]} ({Path(crash.path).name}, line {crash.lineno})"
