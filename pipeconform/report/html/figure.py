"""A picture on a page, which shrinks with the page and has a title for screen readers."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from pipeconform import svg

__all__ = ["figure"]


def figure(shapes: Iterable[str], *, width: float, height: float, title: str, cls: str) -> Markup:
    """SVG shapes as a picture, styled by the page's style sheet."""
    drawn = svg.picture(
        shapes,
        width=width,
        height=height,
        class_=cls,
        style=f"--width:{width:.0f}px",
        role="img",
        aria_label=title,
    )
    return Markup(drawn)  # noqa: S704 - every word in it was escaped
