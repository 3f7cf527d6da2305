"""A picture as PNG, through resvg: one wheel, no system libraries (the extra ``pipeconform[draw]``)."""

from __future__ import annotations

import re

from pipeconform.errors import UsageError

MAX_PIXELS = 60_000_000
"""More are not rendered: a quarter of a gigabyte of memory, and a viewer that gives up."""

_SIZE = re.compile(r'<svg [^>]*?\bwidth="(?P<width>\d+)" height="(?P<height>\d+)"')
_BLANK = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
_LETTER = _BLANK.replace("></svg>", '><text y="9" font-family="sans-serif">F</text></svg>')


def to_png(svg: str) -> bytes:
    """Render a picture at twice its size in pixels, or at its size where twice would be too large.

    Args:
        svg: A picture that says its width and height in pixels, as `draw_svg` writes it.

    Raises:
        UsageError: The renderer is not installed, there is no font to write with, or the picture is too large.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise UsageError(
            "PNG pictures need resvg-py: pip install 'pipeconform[draw]', or draw --svg"
        ) from None
    found = _SIZE.search(svg)
    if found is None:
        raise ValueError("the picture does not say its size in pixels")
    width, height = int(found["width"]), int(found["height"])
    zoom = next((zoom for zoom in (2, 1) if width * height * zoom * zoom <= MAX_PIXELS), None)
    if zoom is None:
        raise UsageError(
            f"{width} × {height} pixels are too many for PNG; draw fewer ranks or microbatches, or --svg"
        )
    # Without any font the renderer leaves all text out and does not say so.
    if svg_to_bytes(svg_string=_LETTER) == svg_to_bytes(svg_string=_BLANK):
        raise UsageError("there is no font on this machine to write with: install one, or draw --svg")
    return svg_to_bytes(svg_string=svg, zoom=zoom)
