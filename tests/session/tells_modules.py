"""A pytest plugin that writes down which modules the controller of a distributed run has loaded at its end."""

import os
import sys
from pathlib import Path


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        Path(os.environ["MODULES"]).write_text("\n".join(sys.modules))
