"""The default places of results."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEFAULT_OUT", "DEFAULT_RESULT", "RESULT_NAME"]

RESULT_NAME = "result.json"
DEFAULT_OUT = Path("pipeconform-results")
DEFAULT_RESULT = DEFAULT_OUT / RESULT_NAME
