"""The chapter is about module wrappers: a run that judges a pipeline does not collect it."""

from __future__ import annotations

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave the folder alone unless a wrapper is judged."""
    wrapper = any(type(one).__name__ == "WrapperRun" for one in config.pluginmanager.get_plugins())
    return None if wrapper else True
