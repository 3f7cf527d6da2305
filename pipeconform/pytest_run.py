"""One run inside pytest: collects the cells, writes the result file, shows the summary.

With pytest-xdist every worker judges its share and sends its cells with the test reports; the
controller, which starts no rank processes, gathers them. A worker that crashes costs the cells it was
judging, and they are reported as errors.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import pipeconform
from pipeconform.attach.session import Attach, attach_of
from pipeconform.campaign.pairs import pairwise
from pipeconform.campaign.setup import Options
from pipeconform.errors import (
    ContractError,
    HarnessError,
    PipeconformError,
    TooFewAgentsError,
    UsageError,
)
from pipeconform.gate.expectations import read_expectations, require_sane_clock
from pipeconform.gate.strict import problems
from pipeconform.replication.either import (
    AnyCampaign,
    Told,
    Weight,
    any_campaign_of,
    columns_of,
    group_of,
    kind_of,
    tell,
    variants_of,
    weights,
)
from pipeconform.report.bulletins import Bulletins
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Cell, Expectations, Result, Run, Totals, decode_cell, write_result
from pipeconform.run.ahead import drop_ahead
from pipeconform.run.cores import Cores
from pipeconform.run.supported import require_supported_torch
from pipeconform.spec import STANDARD_VERSION, profile, rule_digest
from pipeconform.spec.selection import parse_ranks, require_requirement, select_requirements
from pipeconform.spec.wrappers import all_requirements, any_requirement

if TYPE_CHECKING:
    from pipeconform.report.progress import Progress
    from pipeconform.report.terminal import LiveView

__all__ = ["PytestRun"]

_CELL = "pipeconform_cell"
_MARKERS = ("pipeconform_requirement", "pipeconform_wrapper_requirement")
"""By which suite tests carry their requirement."""
NOT_WANTED = object()
"""Parameter of a suite test whose requirement was not asked for; deselected after collection."""
_EARLIER = "earlier.json"
_ENDED = ".ended"
_MOST_ENDS = 2  # workers, for each that there should be, that end in a row before anything is judged
_WRITE_EVERY = 2.0  # seconds between two writings of the unfinished result


class PytestRun:
    """The run's state and its pytest hooks."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        try:
            require_supported_torch()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        self.options = _options(config)
        self.out = Path(config.getoption("pipeconform_out")) if config.getoption("pipeconform_out") else None
        _require_names(self.options)
        self._wanted: frozenset[str] | None = None
        self.is_worker = hasattr(config, "workerinput")
        self.distributes = not self.is_worker and config.getoption("dist", "no") != "no"
        self.cells: dict[tuple[str, str, str], Cell] = {}
        self.unwritten: str | None = None
        """Why the result could not be written."""
        self.told: list[Told] = []
        self.view: LiveView | None = None
        self.interrupted = False
        self._ends = 0
        """Workers that have ended since a cell was judged."""
        self._weights: dict[str, Weight] = {}
        """By group of cells."""
        # Hypothesis keeps its tables in the working directory unless told otherwise
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "hypothesis"))
        self._begun = self._written = time.monotonic()
        self._stack = ExitStack()
        self._campaign: AnyCampaign | None = None
        self._share(config)
        self._check_out()
        if not self.is_worker and config.getoption("pipeconform_live"):
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                config.pluginmanager.unregister(reporter)

    # ------------------------------------------------------------------ set-up

    def _share(self, config: pytest.Config) -> None:
        """Give all workers of a distributed run one folder for executions."""
        if self.is_worker:
            given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
            self._folder: Path | None = Path(given["pipeconform_share"])
            self._worker, self._workers = given["workerid"], given["workercount"]
            self._bulletins = Bulletins(self._folder)
            self._cores = Cores(workers=self._workers)
            self._stack.callback(self._cores.release)
        elif self.distributes:
            self._folder = Path(tempfile.mkdtemp(prefix="pipeconform-"))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if self.out is not None:
                with suppress(OSError):  # there is no run before this one
                    shutil.copy(self.out / RESULT_NAME, self._folder / _EARLIER)
        else:
            self._folder = None

    def _check_out(self) -> None:
        """Refuse a folder that cannot be written before anything is judged."""
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

    @property
    def campaign(self) -> AnyCampaign:
        """The campaign of this process, started on first use."""
        if self._campaign is None:
            before = None if self.out is None else self.out / RESULT_NAME
            if self._folder is not None:
                before = self._folder / _EARLIER  # the other workers' cells may stand in the result by now
            options = dataclasses.replace(self.options, share=self._folder, earlier=before)
            try:
                self._campaign = self._stack.enter_context(any_campaign_of(options))
            except UsageError as error:
                raise pytest.UsageError(str(error)) from error
            except HarnessError as error:
                pytest.exit(f"the harness failed: {error}", returncode=3)
            self._campaign.listener = self._progress
        return self._campaign

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Refuse a wrong adapter or schedule before anything is collected.

        Raised while a test is parametrised, a usage error would count as a broken suite. The controller of a
        distributed run asks, too: its workers have no way to refuse.
        """
        if self.is_worker:
            return
        try:
            if self.distributes:
                with any_campaign_of(self.options) as campaign:
                    self._check_names(campaign)
                    self._weights = weights(campaign)
                    self.told.append(tell(campaign, self.options.schedules))
            else:
                self._check_names(self.campaign)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        except HarnessError as error:
            pytest.exit(f"the harness failed: {error}", returncode=3)

    def _check_names(self, campaign: AnyCampaign) -> None:
        columns_of(campaign, self.options.schedules)
        _wanted(self.options, campaign)

    @property
    def wanted(self) -> frozenset[str]:
        """The requirements that are to be judged: what there is to ask depends on what the implementation is."""
        if self._wanted is None:
            self._wanted = _wanted(self.options, self.campaign)
        return self._wanted

    def close(self) -> None:
        """End processes and remove what is temporary."""
        drop_ahead()
        self._stack.close()

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Spread a test over the schedules and variants; keep schedules together under xdist."""
        found = map(metafunc.definition.get_closest_marker, _MARKERS)
        marker = next((one for one in found if one is not None), None)
        assert marker is not None, "a suite test carries its requirement"
        identifier = any_requirement(marker.args[0]).id
        cells = []
        if identifier in self.wanted:
            schedules = columns_of(self.campaign, self.options.schedules)
            cells = [(identifier, s, v) for v in variants_of(self.campaign, identifier) for s in schedules]
        params: list[Any] = [
            pytest.param(cell, id=":".join(cell), marks=pytest.mark.xdist_group(group_of(*cell)))
            for cell in cells
        ]
        metafunc.fixturenames.append(_CELL)
        metafunc.parametrize(_CELL, params or [pytest.param(NOT_WANTED, id="not wanted")])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item], config: pytest.Config) -> None:
        """Drop the tests of requirements that were not asked for."""
        absent = [item for item in items if _params(item).get(_CELL, ()) is NOT_WANTED]
        if absent:
            config.hook.pytest_deselected(items=absent)
            items[:] = [item for item in items if item not in absent]

    # ------------------------------------------------------------------ judging

    def judge(self, item: pytest.Item) -> None:
        """Judge one cell; fail, skip or pass the test accordingly."""
        identifier, schedule, variant = _params(item)[_CELL]
        if self.is_worker and self._folder is not None:
            self._cores.share_among(self._workers - len(list(self._folder.glob(f"*{_ENDED}"))))
        try:
            cell = self.campaign.judge_cell(any_requirement(identifier), schedule, variant)
        except TooFewAgentsError as error:
            pytest.exit(f"the harness failed: {error}", returncode=3)
        except (HarnessError, ContractError) as error:
            reason = str(error) if isinstance(error, ContractError) else f"the harness failed: {error}"
            cell = Cell(
                requirement=identifier, schedule=schedule, variant=variant, status="error", reason=reason
            )
        item.user_properties.append((_CELL, msgspec.json.encode(cell).decode()))
        if cell.status in ("not_claimed", "skipped"):
            pytest.skip(f"{cell.status}: {cell.reason}")
        if cell.is_expected:
            labels = dict.fromkeys(violation.expected for violation in cell.violations)
            pytest.xfail(f"expected: {', '.join(labels)}")
        if cell.status != "passed":
            from pipeconform.report.text import describe_cell

            pytest.fail(describe_cell(cell), pytrace=False)

    def _progress(self, progress: Progress) -> None:
        if self.view is not None:
            self.view.progress(progress)
        elif self.is_worker:
            self._bulletins.post(self._worker, progress)

    # ------------------------------------------------------------------ gathering

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where executions are shared (xdist)."""
        node.workerinput["pipeconform_share"] = str(self._folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Gather what a worker tells at its end, and see whether it ended of its own accord (xdist)."""
        told = getattr(node, "workeroutput", {}).get("pipeconform")
        if told is not None:
            self.told.append(msgspec.json.decode(told, type=Told))
        if error is None:
            return
        assert self._folder is not None, "a run with workers has a folder that they share"
        Bulletins(self._folder).remove(node.gateway.id)
        self._ends += 1
        if self._ends > _MOST_ENDS * len(self.config.getoption("tx")):
            pytest.exit(
                f"the harness failed: {self._ends} workers have ended one after another without judging anything; "
                f"is there memory enough? A run without -n shows what ends them",
                returncode=3,
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep schedules together, those with the largest worlds and the most cells first (xdist)."""
        from pipeconform.pytest_packing import scheduling

        return scheduling(config, log, group=_group_of_test, weights=self._weights)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """A cell whose worker ended is judged once more, by another: until then it is no failure (xdist)."""
        given_up = getattr(sched, "given_up", None)
        if given_up is not None and not given_up(crashitem):
            path, line, _ = report.location
            report.outcome = "skipped"
            report.longrepr = (path, line or 0, "its worker ended; another judges it once more")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the cell that a report carries; a report that ended without one is an error of its cell."""
        if self.is_worker:
            return
        carried = [value for key, value in report.user_properties if key == _CELL]
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
        self.cells[cell.requirement, cell.schedule, cell.variant] = cell
        if self.view is not None:
            self.view.cell(cell)
        if self.out is not None and time.monotonic() - self._written > _WRITE_EVERY:
            self._write(complete=False)

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that the run is not complete, whatever ended it."""
        self.interrupted = True

    # ------------------------------------------------------------------ the live view

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin to show progress."""
        self._begin_view([str(_params(item)[_CELL][0]) for item in session.items if _CELL in _params(item)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Begin to show progress of a distributed run: every worker collects the same."""
        self._begin_view([_cell_of(nodeid)[0] for nodeid in ids])

    def _begin_view(self, identifiers: list[str]) -> None:
        wanted = self.config.getoption("pipeconform_live") and not self.is_worker
        if not wanted or not identifiers or self.view is not None:
            return
        from rich.console import Console

        from pipeconform.report.terminal import LiveView

        self.view = LiveView(
            Console(),
            cells=Counter(identifiers),
            implementation=self.options.implementation,
            profile=self.options.profile,
            workers=dict if self._folder is None else Bulletins(self._folder).read,
        )
        self.view.start()

    # ------------------------------------------------------------------ the end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the result and decide the exit status."""
        if self._campaign is not None:
            self.told.append(tell(self._campaign, self.options.schedules))
        if self.is_worker:
            self._end_worker()
            if self.told:
                output: dict[str, str] = self.config.workeroutput  # type: ignore[attr-defined]
                output["pipeconform"] = msgspec.json.encode(self.told[-1]).decode()
            return
        if self.view is not None:
            self.view.stop()
        cells = self.cells.values()
        judged = any(cell.judgements for cell in cells)
        failed = any(cell.status == "error" and not cell.violations for cell in cells)
        complete = not (self.interrupted or session.shouldfail or session.shouldstop)
        if self.told:
            self._write(complete=complete)
        if (
            not self.interrupted
            and session.exitstatus in (0, 1, 5)
            and (failed or self.unwritten or not judged)
        ):
            session.exitstatus = 3
        elif session.exitstatus == 0 and self.told and self._file_is_wrong(complete=complete):
            session.exitstatus = 1

    def _end_worker(self) -> None:
        """Leave the cores to the workers that have something to do yet."""
        assert self._folder is not None, "a worker is given a folder that all share"
        self._bulletins.remove(self._worker)
        self._cores.release()
        with suppress(OSError):
            (self._folder / f"{self._worker}{_ENDED}").touch()

    def _file_is_wrong(self, *, complete: bool) -> bool:
        held = self.result(complete=complete).expectations
        return held is not None and bool(held.problems)

    def result(self, *, complete: bool) -> Result:
        """Everything so far, cells in the order of the standard."""
        told = self.told or [tell(self.campaign, self.options.schedules)]
        executed: dict[str, int] = {}
        ranks: dict[str, int] = {}
        for one in told:
            ranks.update(one.num_ranks)
            for digest, count in one.executed.items():
                executed[digest] = executed.get(digest, 0) + count
        order = {row.id: i for i, row in enumerate(all_requirements())}
        schedules = list(told[0].schedules)
        judged = {cell.requirement for cell in self.cells.values()}
        cells = sorted(
            self.cells.values(),
            key=lambda c: (
                order[c.requirement],
                c.variant != "default",
                c.variant,
                schedules.index(c.schedule),
            ),
        )
        sized = self.options.sized()
        found = Result(
            product_version=pipeconform.__version__,
            standard_version=STANDARD_VERSION,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            environment=told[0].environment,
            implementation=told[0].implementation,
            run=Run(
                profile=self.options.profile,
                seed=self.options.seed,
                corpus=sized.corpus,
                search=sized.wrapper_search if told[0].implementation.kind == "wrapper" else sized.search,
                schedules=tuple(schedules),
                max_ranks=self.options.ranks[1],
                selection=",".join(self.options.requirements),
                unrestricted=not self.options.schedules and not self.config.getoption("keyword"),
                complete=complete,
                seconds=round(time.monotonic() - self._begun, 1),
            ),
            totals=Totals(
                judgements=sum(cell.judgements for cell in cells),
                # what workers executed is known when they end; a run cut short knows its cells only
                executions=max(sum(executed.values()), sum(cell.executions for cell in cells)),
                distinct_cases=max([len(executed), *(cell.distinct_cases for cell in cells)]),
                distinct_cases_several_ranks=sum(ranks[digest] > 1 for digest in executed),
                pairs=pairwise(
                    (point for one in told for point in one.reached),
                    (point for one in told for point in one.reachable),
                ),
            ),
            cells=tuple(cells),
            rules={row.id: rule_digest(row) for row in all_requirements() if row.id in judged},
        )
        return msgspec.structs.replace(found, expectations=self._held_against(found))

    def _held_against(self, result: Result) -> Expectations | None:
        file = self.options.expectations
        if file is None:
            return None
        return Expectations(
            file=file.name,
            digest=file.digest,
            entries=len(file.entries),
            problems=problems(file, result, today=_today()),
        )

    def pytest_terminal_summary(self) -> None:
        """Show what pytest's own summary does not: the table, what was not claimed, where the results are."""
        if self.config.getoption("pipeconform_live") or not self.cells:
            return
        from rich.console import Console

        from pipeconform.report.summary import render_overview

        console = Console()
        console.print()
        render_overview(self.result(complete=not self.interrupted), console)
        file = self.out and self.out / RESULT_NAME
        kept = "not kept; --pipeconform-out DIR keeps them, and replay needs them"
        console.print(
            f"results: {self.unwritten or file or kept}", soft_wrap=True, highlight=False, markup=False
        )

    def _write(self, *, complete: bool) -> None:
        if self.out is None:
            return
        try:
            write_result(self.result(complete=complete), self.out / RESULT_NAME)
        except PipeconformError as error:
            self.unwritten = str(error)
        self._written = time.monotonic()


def _group_of_test(nodeid: str) -> str:
    """The name of the group of a test, by its id; one that judges no cell is a group of its own."""
    parts = _cell_of(nodeid)
    return group_of(*parts) if len(parts) == 3 else nodeid


def _cell_of(nodeid: str) -> list[str]:
    """Requirement, schedule and variant in the id of a test; xdist appends its group after an @."""
    return nodeid.rpartition("[")[2].rstrip("]").split("@")[0].split(":")


def _crash_of(report: pytest.TestReport) -> str:
    """The exception that ended a test, in a line: a mistake of ours needs no page of traceback here."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return "\n".join(report.longreprtext.strip().splitlines()[-5:])
    return f"{crash.message.partition(chr(10))[0]} ({Path(crash.path).name}, line {crash.lineno})"


def _params(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def _options(config: pytest.Config) -> Options:
    get = config.getoption

    def listed(name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in get(name).split(",") if part.strip())

    try:
        profile(get("pipeconform_profile"))
        examples = get("pipeconform_examples")
        if examples is not None and examples < 1:
            raise UsageError(f"--examples {examples}: at least 1 case must be drawn")
        file = get("pipeconform_expectations")
        if file is not None:
            require_sane_clock(_today())
        kept = get("pipeconform_keep_cases")
        return Options(
            implementation=get("pipeconform_impl"),
            profile=get("pipeconform_profile"),
            schedules=listed("pipeconform_schedules"),
            requirements=listed("pipeconform_requirements"),
            ranks=parse_ranks(get("pipeconform_ranks")),
            seed=get("pipeconform_seed"),
            examples=examples,
            device=get("pipeconform_device"),
            backend=get("pipeconform_backend"),
            ranks_per_device=get("pipeconform_ranks_per_device"),
            attach=_attach(config),
            expectations=None if file is None else read_expectations(Path(file)),
            keep_cases=None if kept is None else Path(kept),
        )
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _attach(config: pytest.Config) -> Attach | None:
    get = config.getoption
    file = get("pipeconform_token_file")
    chosen = attach_of(
        get("pipeconform_attach"),
        least=get("pipeconform_min_agents"),
        patience=get("pipeconform_agent_wait"),
        token_file=None if file is None else Path(file),
    )
    if chosen is not None and (hasattr(config, "workerinput") or get("dist", "no") != "no"):
        raise UsageError("--attach and -n do not go together: one controller drives all agents")
    return chosen


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def _require_names(options: Options) -> None:
    """Refuse names of requirements that nobody knows, before anything is started."""
    try:
        for name in options.requirements:
            require_requirement(name)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _wanted(options: Options, campaign: AnyCampaign) -> frozenset[str]:
    try:
        chosen = select_requirements(options.requirements, kind=kind_of(campaign))
        if options.requirements:
            return chosen
        left_out = options.sized().leaves_out
        return frozenset(one for one in chosen if one.partition("-")[0] not in left_out)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
