"""``python -m pipeconform``: the command line, if the script is not on the path."""

from __future__ import annotations

from pipeconform.cli import main

if __name__ == "__main__":
    main()
