"""What all tests share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.warm_servers import WarmServers

# A shell's & lets its children ignore Ctrl-C for good; ours are to hear it however the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
