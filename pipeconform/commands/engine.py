"""Running pytest in this process, isolated from the user's own pytest configuration."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from pipeconform.attach.session import Attach
from pipeconform.campaign.options import Options
from pipeconform.errors import HarnessError, UsageError
from pipeconform.plural import plural
from pipeconform.report.result import Cell, Result
from pipeconform.report.words import under

__all__ = ["Ended", "arguments", "drive", "isolated", "unjudged"]

CACHE_NAME = ".pytest_cache"
"""The folder, beside the result, in which pytest remembers which cells failed."""

_ISOLATED = {
    # Other people's plugins reorder, repeat and time out tests; `-- -p NAME` loads one on purpose.
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": None,
    "PYTEST_PLUGINS": None,
}


@dataclass
class Ended:
    """How a pytest session ended, and what pytest would have printed about it."""

    code: int = 0
    interrupted: bool = False
    complete: bool = False
    """Whether everything that was asked for was judged."""
    usage: list[str] = field(default_factory=list)
    """Messages about arguments, names or the adapter."""
    failures: list[str] = field(default_factory=list)
    """Errors of pytest or of the suites themselves, with tracebacks."""
    gave_up: str = ""
    """Why the run ended of its own accord before it judged anything."""
    result: Result | None = None
    """What the run found, if the result file could not be written."""
    unwritten: str = ""
    """Why the result file could not be written, and what was written instead."""
    kept: Path | None = None
    """Where the replacement was written."""

    def require_begun(self) -> None:
        """Raise why nothing was judged.

        Raises:
            UsageError: names, arguments or the adapter were refused.
            HarnessError: the run gave up before it judged anything.
        """
        if self.gave_up:
            raise HarnessError(self.gave_up)
        if self.usage:
            raise UsageError("\n".join(self.usage))

    def require(self) -> None:
        """Raise whatever ended the session before its end, for callers that want the whole result or none.

        Raises:
            KeyboardInterrupt: it was interrupted.
            UsageError: as `require_begun`.
            HarnessError: as `require_begun`, or the suites failed, or the result could not be written.
        """
        self.require_begun()
        if self.interrupted:
            raise KeyboardInterrupt
        if self.failures:
            raise HarnessError(f"the suites failed: {self.failures[0]}")
        if self.unwritten:
            raise HarnessError(self.unwritten)


def unjudged(cells: Iterable[Cell]) -> str:
    """Which cell the harness could not judge, and why; empty if there is none."""
    broken = [cell for cell in cells if cell.is_broken]
    if not broken:
        return ""
    first, more = broken[0], len(broken) - 1
    rest = f" (and {plural(more, 'more cell')})" if more else ""
    reason = first.reason.partition("\n")[0]
    return f"{first.requirement}{under(first.schedule)} could not be judged{rest}: {reason}"


def arguments(
    options: Options,
    *,
    out: Path,
    expectations: Path | None = None,
    keyword: str | None = None,
    workers: str | None = None,
    exit_first: bool = False,
    last_failed: bool = False,
    coverage: bool = False,
    live: bool = True,
    journal: Path | None = None,
    others: Sequence[str] = (),
) -> list[str]:
    """The command line for pytest; `journal` is the folder of the run's journal, if it keeps one."""
    suites = resources.files("pipeconform.suites")
    ini = resources.files("pipeconform.commands") / "run.ini"
    given = {
        **_options(options),
        **_agents(options.attach),
        "expectations": expectations,
        "out": out,
        "journal": journal,
    }
    # A folder, not `--pyargs`: with a path to anchor on, no conftest.py of the working directory is loaded.
    return [
        str(suites),
        "-c",
        str(ini),
        f"--rootdir={suites}",
        "--capture=no",  # ranks write to files of their own; the live view must reach the terminal
        "-p",
        "pipeconform.plugin",
        "-p",
        "xdist.plugin",
        # judging logs nothing, and catching logs costs as much as everything else that pytest does for a test
        *([] if any(one.startswith("--log") for one in others) else ["-p", "no:logging"]),
        *(f"--pipeconform-{name}={value}" for name, value in given.items() if value is not None),
        "-o",
        f"cache_dir={(out / CACHE_NAME).absolute()}",  # what failed, for --lf
        *(["--pipeconform-live"] if live else []),
        *(["--pipeconform-show-output"] if options.show_output else []),
        *(["--pipeconform-coverage"] if coverage else []),
        *(["-k", keyword] if keyword is not None else []),
        *(["-n", workers, "--dist", "loadgroup"] if workers is not None and workers != "0" else []),
        *(["-x"] if exit_first else []),
        *(["--lf"] if last_failed else []),
        *others,
    ]


def _options(options: Options) -> dict[str, object]:
    """Values of the plugin's options, by their names without the prefix."""
    return {
        "impl": options.implementation,
        "profile": options.profile,
        "schedules": ",".join(options.schedules) or None,
        "requirements": ",".join(options.requirements) or None,
        "ranks": "{}-{}".format(*options.ranks),
        "seed": options.seed,
        "examples": options.examples,
        "device": options.device,
        "backend": options.backend,
        "ranks-per-device": options.ranks_per_device,
        "time-limit": options.time_limit,
        "keep-cases": options.keep_cases,
    }


def _agents(attach: Attach | None) -> dict[str, object]:
    if attach is None:
        return {}
    host = f"[{attach.host}]" if ":" in attach.host else attach.host
    return {
        "on": attach.engine or None,
        "attach": f"{host}:{attach.port}" if host or not attach.engine else None,
        "min-agents": attach.least,
        "agent-wait": attach.patience,
        "token-file": attach.token_file,
    }


def drive(command: Sequence[str]) -> Ended:
    """Run pytest in this process."""
    ended, refusal = Ended(), io.StringIO()
    with isolated(), contextlib.ExitStack() as parsing:
        parsing.enter_context(contextlib.redirect_stderr(refusal))
        ended.code = int(pytest.main(list(command), plugins=[_Watcher(ended, parsing)]))
    if ended.code == pytest.ExitCode.USAGE_ERROR and not ended.usage:
        ended.usage.append(_refused(refusal.getvalue()))
    return ended


def isolated() -> contextlib.AbstractContextManager[None]:
    """A context for a pytest session that loads only our own plugins."""
    return _environment(_ISOLATED)


def _refused(text: str) -> str:
    """Pytest's message about arguments that it refuses, without its usage line and paths."""
    found = re.search(r"error: (.+)", text)
    return f"pytest refused its arguments: {found[1] if found else text.strip()}"


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    try:
        _set(changes)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _Watcher:
    """Collects what pytest's own reporter would have printed; a live run does not load that reporter."""

    def __init__(self, ended: Ended, parsing: contextlib.ExitStack) -> None:
        self._ended, self._parsing = ended, parsing

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_main(self) -> Generator[None, Any, Any]:
        """Keep the text of a usage error instead of letting pytest print it."""
        self._parsing.close()  # the arguments were accepted: standard error is standard error again
        try:
            return (yield)
        except pytest.UsageError as error:
            if not self._ended.gave_up:
                self._ended.usage.append("\n".join(map(str, error.args)))
            return pytest.ExitCode.USAGE_ERROR

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None, Any, Any]:
        """Keep the reason why a run cannot start; pytest would not print a usage error raised here."""
        try:
            return (yield)
        except pytest.exit.Exception as error:
            self._ended.gave_up = error.msg
            raise pytest.UsageError(error.msg) from error

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Unregister pytest's reporter; failures are reported in our own words."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            config.pluginmanager.unregister(reporter)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Distinguish Ctrl-C from the other reasons to stop that pytest calls interruptions."""
        self._ended.interrupted = excinfo.type is KeyboardInterrupt
        if isinstance(excinfo.value, pytest.exit.Exception):
            self._ended.failures.append(excinfo.value.msg)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Keep a result that could not be written; a file that other options make pytest write costs no result."""
        try:
            return (yield)
        except OSError as error:
            self._ended.unwritten = f"cannot write {error.filename or 'a file'}: {error.strerror or error}"
            session.exitstatus = 3
        finally:
            run = session.config.pluginmanager.get_plugin("pipeconform-run")
            self._ended.complete = run is not None and run.complete
            if run is not None and run.gathered.unwritten is not None:
                gathered = run.gathered
                self._ended.result, self._ended.kept = gathered.last, gathered.kept
                self._ended.unwritten = gathered.unwritten

    def pytest_internalerror(self, excrepr: object) -> bool:
        """Keep the text of an internal error; returning True keeps pytest from printing it."""
        self._ended.failures.append(str(excrepr))
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the error of a suite that cannot be collected."""
        if report.failed:
            self._ended.failures.append(f"{report.nodeid or 'the suites'}: {report.longreprtext}")
