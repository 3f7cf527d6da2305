"""The cache folder of the libraries that draw cases."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["keep_hypothesis_files"]


def keep_hypothesis_files() -> None:
    """Let Hypothesis keep its files in the user's cache folder, unless its own environment variable is set.

    By default it would leave ``.hypothesis`` in the working directory. The folder is ``pipeconform/hypothesis`` in
    ``$XDG_CACHE_HOME``, or in ``~/.cache``; in the temporary folder where neither can be written.
    """
    if "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(_cache_folder() / "hypothesis")


def _cache_folder() -> Path:
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipeconform"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return Path(tempfile.gettempdir()) / "pipeconform-cache"
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir()) / "pipeconform-cache"
