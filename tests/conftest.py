"""What all tests share."""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests import tenths, turns
from tests.asked_again import AskedAgain
from tests.gone_on import GoneOn
from tests.kept_together import keep_together
from tests.warm_servers import WarmServers

# A shell's & lets its children ignore Ctrl-C for good; ours are to hear it however the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)


# a busy machine takes longer than any limit
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_addoption(parser):
    parser.addoption(
        "--tenth", type=int, help="run a tenth of the long tests, and a fifth of others that take long"
    )
    parser.addoption(
        "--ask-again", type=Path, help="run what fails again, and write what passes then to this file"
    )
    parser.addoption("--go-on", type=Path, help="leave out what this file says has passed, and add to it")


def pytest_configure(config):
    controls = not hasattr(config, "workerinput")
    path = config.getoption("--go-on")
    if path is not None:
        config.pluginmanager.register(GoneOn(path.resolve(), keeps=controls), "gone on")
    path = config.getoption("--ask-again")
    if path is not None:
        config.pluginmanager.register(AskedAgain(path.resolve(), begins=controls), "asked again")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    number = config.getoption("--tenth")
    if number is not None:
        turns.take(items, number=number, long=turns.kept())
        tenths.take(items, number=number)
    keep_together(items)


def pytest_collection_finish():
    """Let torch compute in one thread, as ranks do, and look for garbage only among what tests make.

    The tensors are small: a second thread spends more time waiting than it saves, and there is a worker per core. No
    variable says so, because ranks would inherit it, and some tests are about the variables that they are given.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # torch's modules, thousands of tests


ABOUT_SERVERS = ("ranks/", "attach/", "session/", "campaign/test_isolation.py")
"""The tests that are about starting and ending processes."""


@pytest.fixture(scope="session")
def warm_servers():
    made = WarmServers()
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def _runs_share_servers(request, warm_servers):
    """Runs in this process fork their ranks from servers that they need not start."""
    if request.path.relative_to(Path(__file__).parent).as_posix().startswith(ABOUT_SERVERS):
        yield
        return
    with warm_servers.used():
        yield


@pytest.fixture
def typed(capsys, tmp_path, monkeypatch):
    """Run the command line in an empty folder; return exit code, standard output and standard error."""
    from pipeconform.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return run


@pytest.fixture(scope="session")
def browser():
    """Chromium, one for all tests of a process: Playwright cannot be started twice."""
    from playwright.sync_api import sync_playwright

    from tests.report.html.chromium import ARGUMENTS, CHROMIUM, PATIENCE

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        yield started
        started.close()
