"""The console that prints every report, and what it redraws in place."""

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
    """Rich's console for untrusted text: it interprets no markup and escapes the text's control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments, with control characters of their text escaped."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown(text), style)


def redrawn(console: Console, render: Callable[[], RenderableType], *, updates: float) -> Live:
    """Draw what `render` returns, `updates` times a second, until the returned object is stopped; then erase it."""
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
    """A progress bar."""
    full = _BAR * done // max(total, 1)
    return Text.assemble(("━" * full, "green"), ("─" * (_BAR - full), "dim"))
