"""Lines that are redrawn in place, on a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live

__all__ = ["redrawn"]


def redrawn(console: Console, render: Callable[[], RenderableType], *, updates: float) -> Live:
    """Begin to draw what `render` returns, `updates` times a second, until the result is stopped, and then nothing."""
    live = Live(
        get_renderable=render,
        console=console,
        refresh_per_second=updates,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    return live
