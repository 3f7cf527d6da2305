"""The console that every report is printed with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pipeconform.showing import shown

__all__ = ["SafeConsole"]


class SafeConsole(Console):
    """Rich's console, for text of strangers: it is no markup, and only styles and rich's own controls move anything."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments, their text made fit to be shown."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(shown(text), style)
