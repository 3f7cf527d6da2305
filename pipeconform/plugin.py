"""The pytest plugin: the engine of every run. Inert, and light, unless ``--pipeconform-impl`` is given.

It loads in every pytest session where pipeconform is installed, so it imports neither torch nor
Hypothesis until a run is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pipeconform.session.run import PytestRun

_ANY_NUMBER = 1_000_000
_RUN: pytest.StashKey[PytestRun] = pytest.StashKey()
_JUDGES = frozenset({"pipeconform_judge", "pipeconform_judge_wrapper"})
"""Fixtures of the suites' tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options; all carry the prefix, so that no other plugin's can collide."""
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
    option("examples", "cases per focus and schedule, instead of the profile's", default=None, type=int)
    option("out", "folder for result.json", default=None)
    option("device", "cpu, auto or a torch device type", default="cpu")
    option("backend", "gloo, nccl, auto or another torch.distributed backend", default="auto")
    option("ranks-per-device", "let this many ranks share one device", default=1, type=int)
    option("attach", "HOST:PORT at which agents connect whose ranks execute the cases", default=None)
    option(
        "min-agents",
        "agents without which the run stops (default: the largest of --ranks)",
        default=None,
        type=int,
    )
    option("agent-wait", "seconds to wait for agents (default: 120)", default=None, type=float)
    option("token-file", "file with the token that agents know (default: PIPECONFORM_TOKEN)", default=None)
    option("expectations", "file of failures that are expected", default=None)
    option("keep-cases", "folder in which every judged case is kept", default=None)
    parser.addini("pipeconform_ranks_marker", "another name of the marker pipeconform_ranks, such as: ranks")
    option("live", "show pipeconform's own progress instead of pytest's", action="store_true", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let pytest-xdist replace every worker that ends: the run itself decides when that is no use."""
    if config.getoption("pipeconform_impl") and getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = str(_ANY_NUMBER)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; start a run when an implementation is named.

    Last of all plugins, because a live run takes the place of pytest's own reporter.
    """
    config.addinivalue_line(
        "markers", "pipeconform_requirement(id): the requirement of the standard that a test judges"
    )
    config.addinivalue_line(
        "markers", "pipeconform_wrapper_requirement(id): likewise, of a data-parallel wrapper"
    )
    for name in _ranks_markers(config):
        config.addinivalue_line(
            "markers",
            f"{name}(n, time_limit=60, idle_limit=2, record=False, device='cpu', backend='auto', environment=None): "
            "run the test on n ranks of a warm process group; see pipeconform.run_on_ranks",
        )
    if config.getoption("pipeconform_impl"):
        from pipeconform.session.options import distributes

        if not distributes(config):
            _start_ahead(config)
        from pipeconform.session.run import PytestRun

        run = PytestRun(config)
        config.stash[_RUN] = run
        config.pluginmanager.register(run, "pipeconform-run")


def _start_ahead(config: pytest.Config) -> None:
    """Let the fork server import torch while this process does, where ranks run here and a pipeline is judged."""
    from pipeconform.campaign.preload import PRELOAD
    from pipeconform.execute.implementation import WRAPPERS
    from pipeconform.ranks.prestart import start_ahead

    here = config.getoption("pipeconform_attach") is None and config.getoption("pipeconform_device") == "cpu"
    if here and config.getoption("pipeconform_impl") not in WRAPPERS:
        start_ahead(preload=PRELOAD)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End every process of the run."""
    run = config.stash.get(_RUN, None)
    if run is not None:
        run.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per requirement, schedule and variant."""
    if not _JUDGES & set(metafunc.fixturenames):
        return
    run = metafunc.config.stash.get(_RUN, None)
    if run is not None:
        run.parametrize(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse the suites without an implementation: once, not for each of their files."""
    asking = any(_JUDGES & set(getattr(item, "fixturenames", ())) for item in items)
    if asking and config.stash.get(_RUN, None) is None:
        raise pytest.UsageError(
            "pipeconform's suites judge an implementation: give --pipeconform-impl "
            "(a built-in name such as 'torch', package.module:Object or path/to/file.py:Object)"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test that is marked so on ranks, instead of here."""
    found = map(pyfuncitem.get_closest_marker, _ranks_markers(pyfuncitem.config))
    marker = next((one for one in found if one is not None), None)
    if marker is None:
        return None
    from pipeconform.ranks.marker import call_on_ranks

    call_on_ranks(pyfuncitem, marker)
    return True


def _ranks_markers(config: pytest.Config) -> tuple[str, ...]:
    """The marker's names: a short one only where it is asked for, since other plugins may have it, too."""
    return tuple(filter(None, ("pipeconform_ranks", config.getini("pipeconform_ranks_marker"))))


@pytest.fixture
def pipeconform_judge(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Judge the test's requirement; calling it fails the test with the smallest counter-examples."""
    run = request.config.stash[_RUN]
    return lambda: run.judge(request.node)


@pytest.fixture
def pipeconform_judge_wrapper(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Likewise, in the suites about data-parallel wrappers."""
    run = request.config.stash[_RUN]
    return lambda: run.judge(request.node)
