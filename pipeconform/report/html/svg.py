"""Writing SVG as text: escaped here, styled by the page's style sheet.

A page holds tens of thousands of shapes, so numbers are short and what many shapes share is said by a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from markupsafe import Markup

__all__ = ["group", "line", "number", "picture", "rect", "text"]


def number(value: float) -> str:
    """A coordinate: a tenth of a pixel is finer than a screen shows."""
    return f"{value:.1f}".removesuffix(".0")


def text(words: str, x: float, y: float, *, cls: str = "", anchor: str = "") -> str:
    """Words at a place."""
    given = (f' class="{cls}"' if cls else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{number(x)}" y="{number(y)}"{given}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, *, cls: str = "", title: str = "") -> str:
    """A rectangle and, where given, words that appear over it; how round it is the style sheet says."""
    given = f' class="{cls}"' if cls else ""
    box = f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.5))}" height="{number(height)}"{given}'
    return f"{box}><title>{escape(title)}</title></rect>" if title else f"{box}/>"


def line(points: Iterable[tuple[float, float]], *, cls: str) -> str:
    """A line through points."""
    joined = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return f'<polyline class="{cls}" points="{joined}"/>'


def group(shapes: Iterable[str], *, cls: str, at: tuple[float, float]) -> str:
    """Shapes that look alike, whose places count from `at`."""
    x, y = at
    return f'<g class="{cls}" transform="translate({number(x)} {number(y)})">{"".join(shapes)}</g>'


def picture(shapes: Iterable[str], *, width: float, height: float, title: str, cls: str) -> Markup:
    """A picture of its natural size, with a title for those who cannot see it."""
    wide, high = f"{width:.0f}", f"{height:.0f}"
    head = (
        f'<svg class="{cls}" style="--width:{wide}px" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" role="img" aria-label="{escape(title)}">'
    )
    return Markup(f"{head}{''.join(shapes)}</svg>")  # noqa: S704 - every word in it was escaped above
