"""The console that every report is printed with, and what is redrawn on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from pipeconform.showing import shown

__all__ = ["SafeConsole", "bar", "redrawn"]

_BAR = 40  # columns


class SafeConsole(Console):
    """Rich's console, for text of strangers: it is no markup, and only styles and rich's own controls move anything."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments, their text made fit to be shown."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown(text), style)


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


def bar(done: int, total: int) -> Text:
    """How much of `total` is done, as a bar."""
    full = _BAR * done // max(total, 1)
    return Text.assemble(("━" * full, "green"), ("─" * (_BAR - full), "dim"))
