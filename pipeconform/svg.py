"""Writing SVG as text, with all words escaped.

A page has tens of thousands of shapes, so numbers are short, and attributes that many shapes share belong to a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["corners", "element", "group", "line", "number", "picture", "rect", "text"]


def number(value: float) -> str:
    """A coordinate, rounded to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, *content: str, **attributes: str | float) -> str:
    """An element, whose content is escaped already; empty attributes are left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
        if value != ""
    )
    return f"<{name}{given}>{''.join(content)}</{name}>" if content else f"<{name}{given}/>"


def text(words: str, x: float, y: float, *, cls: str = "", anchor: str = "", **others: str | float) -> str:
    """A text element."""
    return element("text", escape(words), x=x, y=y, class_=cls, text_anchor=anchor, **others)


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    cls: str = "",
    title: str = "",
    **others: str | float,
) -> str:
    """A rectangle, with an optional tooltip."""
    words = (element("title", escape(title)),) if title else ()
    return element("rect", *words, x=x, y=y, width=max(width, 0.5), height=height, class_=cls, **others)


def line(points: Iterable[tuple[float, float]], *, cls: str) -> str:
    """A line through points."""
    return element("polyline", class_=cls, points=corners(points))


def corners(points: Iterable[tuple[float, float]]) -> str:
    """Points as the value of a ``points`` attribute."""
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


def group(shapes: Iterable[str], *, cls: str, at: tuple[float, float]) -> str:
    """Shapes with the same style, in coordinates relative to `at`."""
    x, y = at
    return element("g", *shapes, class_=cls, transform=f"translate({number(x)} {number(y)})")


def picture(shapes: Iterable[str], *, width: float, height: float, **attributes: str) -> str:
    """A picture in its natural size, with further attributes of the ``svg`` element."""
    wide, high = f"{width:.0f}", f"{height:.0f}"
    return element("svg", *shapes, width=wide, height=high, viewBox=f"0 0 {wide} {high}", **attributes)
