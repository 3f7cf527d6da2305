"""A pytest plugin that ends the process of a run, or of a worker, while it judges.

``ENDS`` says how and when: a signal's number, a slash, and the cell at which it comes, counted from 1 in each process.
Without the variable it does nothing.
"""

import os
import threading

import pytest

_begun = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if "ENDS" not in os.environ:
        return
    signum, _, at = os.environ["ENDS"].partition("/")
    _begun.append(item.nodeid)
    if len(_begun) != int(at):
        return
    # a worker's end would only cost one attempt at a cell: the whole run is to end
    pid = os.getppid() if hasattr(item.config, "workerinput") else os.getpid()
    threading.Timer(0.02, os.kill, (pid, int(signum))).start()
