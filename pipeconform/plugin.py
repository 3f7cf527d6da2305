"""The pytest plugin, which performs every run. It does nothing unless ``--pipeconform-impl`` is given.

Every pytest session loads it where pipeconform is installed, so it imports neither torch nor Hypothesis until a run is
asked for.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pipeconform.session.items import SuiteFile
    from pipeconform.session.run import PytestRun

_ANY_NUMBER = 1_000_000
_RUN: pytest.StashKey[PytestRun] = pytest.StashKey()
_REFUSED: pytest.StashKey[bool] = pytest.StashKey()
"""Set if the suites were to be collected, but no implementation was given."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options, all with a prefix, so that they do not collide with those of other plugins."""
    group = parser.getgroup("pipeconform", "conformance of pipeline-parallel training")

    def option(name: str, help_text: str, **how: object) -> None:
        group.addoption(
            f"--pipeconform-{name}", dest=f"pipeconform_{name.replace('-', '_')}", help=help_text, **how
        )

    option(
        "impl", "implementation to judge: a built-in name, package.module:Object or path/to/file.py:Object"
    )
    option("profile", "smoke, core, full or exhaustive", default="core")
    option("schedules", "comma-separated schedules (default: all that are claimed)", default="")
    option("requirements", "comma-separated requirement ids or chapters (default: all)", default="")
    option("ranks", "pipeline ranks to use: N or A-B", default="1-4")
    option("seed", "seed of all corpora", default=0, type=int)
    option("examples", "cases per subject and schedule (default: from the profile)", default=None, type=int)
    option("out", "folder for result.json", default=None)
    option("journal", "folder in which the run notes what it judges, so that it can be resumed", default=None)
    option("device", "cpu, auto or a torch device type", default="cpu")
    option("backend", "gloo, nccl, auto or another torch.distributed backend", default="auto")
    option("ranks-per-device", "number of ranks that may share a device", default=1, type=int)
    option("time-limit", "seconds after which the ranks of a case are stopped", default=60.0, type=float)
    option("on", "what starts the ranks: local, slurm or torchrun", default=None)
    option("attach", "HOST:PORT to which agents connect, whose ranks execute the cases", default=None)
    option(
        "min-agents",
        "the run stops if fewer agents are connected (default: the largest of --ranks)",
        default=None,
        type=int,
    )
    option("agent-wait", "seconds to wait for agents (default: 120)", default=None, type=float)
    option(
        "token-file", "file with the token that agents must know (default: PIPECONFORM_TOKEN)", default=None
    )
    option("expectations", "file of known failures", default=None)
    option("keep-cases", "folder in which to keep every judged case", default=None)
    parser.addini("pipeconform_ranks_marker", "another name of the marker pipeconform_ranks, such as: ranks")
    option("show-output", "show what ranks print while they print it", action="store_true", default=False)
    option(
        "coverage",
        "measure which lines and branches of the implementation's packages the ranks execute",
        action="store_true",
        default=False,
    )
    option("live", "show pipeconform's own progress instead of pytest's", action="store_true", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let pytest-xdist replace every worker that ends; the run itself decides when to give up."""
    if config.getoption("pipeconform_impl") and getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = str(_ANY_NUMBER)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker for tests on ranks, and start a run if an implementation is given.

    It runs after all other plugins, because a live run replaces pytest's own reporter.
    """
    for name in _ranks_markers(config):
        config.addinivalue_line(
            "markers",
            f"{name}(n, time_limit=60, idle_limit=2, record=False, device='cpu', backend='auto', ranks_per_device=1, "
            "environment=None): run the test on n ranks of a warm process group; see pipeconform.run_on_ranks",
        )
    if config.getoption("pipeconform_impl"):
        from pipeconform.session.options import distributes

        if not distributes(config):
            _start_ahead(config)
        from pipeconform.session.not_met import NotMet
        from pipeconform.session.run import PytestRun

        run = PytestRun(config)
        config.stash[_RUN] = run
        config.pluginmanager.register(run, "pipeconform-run")
        if not run.is_worker:
            config.pluginmanager.register(
                NotMet(config, is_not_met=run.gathered.is_not_met), "pipeconform-not-met"
            )


def _start_ahead(config: pytest.Config) -> None:
    """If ranks run on this host, let the fork server import torch while this process does."""
    from pipeconform.campaign.preload import PRELOAD
    from pipeconform.ranks.prestart import start_ahead

    agents = config.getoption("pipeconform_attach") or config.getoption("pipeconform_on") not in (
        None,
        "local",
    )
    here = not agents and config.getoption("pipeconform_device") == "cpu"
    if here:
        start_ahead(preload=PRELOAD)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End every process of the run."""
    run = config.stash.get(_RUN, None)
    if run is not None:
        run.close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """Collect the requirements in a file of the suites."""
    if file_path.suffix != ".py" or _suites() not in file_path.parents:
        return None
    run = parent.config.stash.get(_RUN, None)
    if run is None:
        parent.config.stash[_REFUSED] = True
        return None
    from pipeconform.session.items import SuiteFile

    found: SuiteFile = SuiteFile.from_parent(parent, path=file_path, run=run)
    return found


@functools.cache
def _suites() -> Path:
    """The folder of the suites."""
    spec = find_spec("pipeconform.suites")
    assert spec is not None, "the suites are installed with the plugin"
    assert spec.origin is not None, "they are a package"
    return Path(spec.origin).parent


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Refuse the suites without an implementation, once instead of for each file."""
    if config.stash.get(_REFUSED, False):
        raise pytest.UsageError(
            "pipeconform's suites judge an implementation: give --pipeconform-impl "
            "(a built-in name such as 'torch', package.module:Object or path/to/file.py:Object)"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a marked test on ranks instead of in this process."""
    found = map(pyfuncitem.get_closest_marker, _ranks_markers(pyfuncitem.config))
    marker = next((one for one in found if one is not None), None)
    if marker is None:
        return None
    from pipeconform.ranks.marker import call_on_ranks

    call_on_ranks(pyfuncitem, marker)
    return True


def _ranks_markers(config: pytest.Config) -> tuple[str, ...]:
    """The marker's names; a short one must be asked for, since other plugins may use it, too."""
    return tuple(filter(None, ("pipeconform_ranks", config.getini("pipeconform_ranks_marker"))))
