"""What all tests share."""

from __future__ import annotations

import signal

import pytest

# A shell's & lets its children ignore Ctrl-C for good; ours are to hear it however the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
