"""A picture becomes a PNG of twice its size; what stands in the way is said in one line."""

import struct
import sys
from functools import partial

import pytest

from pipeconform.errors import UsageError
from pipeconform.schedule import draw_svg, generate, png, simulate
from pipeconform.schedule.png import to_png

resvg_py = pytest.importorskip("resvg_py", reason="the extra pipeconform[draw] is not installed")

SMALL = '<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"><rect width="30" height="20"/></svg>'


def _size(data):
    return struct.unpack(">II", data[16:24])


def test_a_picture_is_rendered_at_twice_its_size():
    data = to_png(draw_svg(simulate(generate("zb_h1", num_ranks=2, num_microbatches=4)), width=700))

    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert _size(data)[0] == 1400


def test_its_text_is_written():
    with_words = SMALL.replace("</svg>", '<text y="15" font-size="15" fill="#fff">0F0</text></svg>')

    assert to_png(with_words) != to_png(SMALL)


def test_a_large_one_is_rendered_at_its_own_size_and_a_huge_one_refused(monkeypatch):
    monkeypatch.setattr(png, "MAX_PIXELS", 700)
    assert _size(to_png(SMALL)) == (30, 20)

    monkeypatch.setattr(png, "MAX_PIXELS", 599)
    with pytest.raises(UsageError, match="30 × 20 pixels are too many for PNG"):
        to_png(SMALL)


@pytest.mark.parametrize("missing", ["resvg_py", "font_source_sans_pro"])
def test_what_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(UsageError, match=r"pip install 'pipeconform\[draw\]'"):
        to_png(SMALL)


def test_text_is_written_on_a_machine_without_any_font(monkeypatch):
    monkeypatch.setattr(resvg_py, "svg_to_bytes", partial(resvg_py.svg_to_bytes, skip_system_fonts=True))

    for weight in ("normal", "bold"):
        word = (
            f'<text y="15" font-family="Helvetica, sans-serif" font-weight="{weight}" fill="#fff">0F0</text>'
        )
        assert to_png(SMALL.replace("</svg>", f"{word}</svg>")) != to_png(SMALL)


def test_only_pictures_that_say_their_size_are_rendered():
    with pytest.raises(ValueError, match="does not say its size"):
        to_png("<svg xmlns='http://www.w3.org/2000/svg'/>")
