"""A pytest plugin that ends workers of a distributed run, as a machine without memory does.

``ENDS`` says where: a part of a test's name, and after a slash whether ``once``, ``always`` or ``never``; or ``start``.
Which worker began which of these tests is noted in the file that ``ENDED`` names.
"""

import os
import signal
from pathlib import Path

import pytest


def _end(config):
    if hasattr(config, "workerinput"):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    if os.environ["ENDS"] == "start":
        _end(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    name, _, often = os.environ["ENDS"].partition("/")
    if often and name in item.nodeid:
        marker = Path(os.environ["ENDED"])
        with marker.open("a") as file:
            file.write(f"{item.config.workerinput['workerid']} {item.name}\n")
        if often == "always" or (often == "once" and len(marker.read_text().splitlines()) == 1):
            _end(item.config)
