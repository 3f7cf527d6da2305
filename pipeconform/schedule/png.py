"""A picture as PNG, through resvg: wheels only, no system libraries or fonts (the extra ``pipeconform[draw]``)."""

from __future__ import annotations

import re

from pipeconform.errors import UsageError

MAX_PIXELS = 60_000_000
"""More are not rendered: a quarter of a gigabyte of memory, and a viewer that gives up."""

_SIZE = re.compile(r'<svg [^>]*?\bwidth="(?P<width>\d+)" height="(?P<height>\d+)"')


def to_png(svg: str) -> bytes:
    """Render a picture at twice its size in pixels, or at its size where twice would be too large.

    Args:
        svg: A picture that says its width and height in pixels, as `draw_svg` writes it.

    Raises:
        UsageError: The renderer or its font is not installed, or the picture is too large.
    """
    try:
        from font_source_sans_pro import font_files_ttf
        from resvg_py import svg_to_bytes
    except ImportError:
        raise UsageError(
            "PNG pictures need resvg-py and a font: pip install 'pipeconform[draw]', or draw --svg"
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
    # The renderer leaves text out where it finds no font, and does not say so: a server often has none.
    return svg_to_bytes(
        svg_string=svg,
        zoom=zoom,
        font_files=[font_files_ttf["SourceSansPro"], font_files_ttf["SourceSansProBold"]],
        font_family="Source Sans Pro",
        sans_serif_family="Source Sans Pro",
    )
