"""The badge of a certificate: a small SVG for a README, with text that screen readers read."""

from __future__ import annotations

from pipeconform.certificate.contents import Certificate
from pipeconform.showing import shown_line
from pipeconform.spec import certification_level
from pipeconform.svg import element, number, picture, rect, text

__all__ = ["badge", "badge_words"]

_HEIGHT = 20
_PADDING, _CORNER = 6.0, 3.0
_MADE_BY = "pipeconform"
_GREY, _GREEN, _RED, _OPEN = "#464c53", "#1a6b34", "#b3261e", "#59636e"
_FONT = "Verdana,'DejaVu Sans',Geneva,sans-serif"
_NARROW, _WIDE = "fijlrt.,:;!|'I ()[]/", "mwMW@%"


def badge(certificate: Certificate) -> bytes:
    """The badge: whose certificate it is stands in its title, the level and the standard's version on it."""
    words, said = badge_words(certificate)
    left, right = _width(_MADE_BY) + 2 * _PADDING, _width(words) + 2 * _PADDING
    colour = _OPEN if certificate.shard else _GREEN if certificate.granted else _RED
    shapes = [
        element("title", _escaped(said)),
        rect(0, 0, left + right, _HEIGHT, rx=_CORNER, fill=_GREY),
        element("path", d=_right_part(left, right), fill=colour),
        element(
            "g",
            _word(_MADE_BY, _PADDING, width=left - 2 * _PADDING),
            _word(words, left + _PADDING, width=right - 2 * _PADDING),
            fill="#ffffff",
            font_family=_FONT,
            font_size="11",
        ),
    ]
    drawn = picture(
        shapes,
        width=left + right,
        height=_HEIGHT,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=said,
    )
    return (drawn + "\n").encode()


def badge_words(certificate: Certificate) -> tuple[str, str]:
    """The words on the badge, and the sentence that is its title."""
    level = certification_level(certificate.level).title
    name = certificate.quoted
    standard = f"standard {certificate.standard_version}"
    if certificate.shard:
        words, said = f"{level} · shard {certificate.shard}", "is part of a certification for"
    elif certificate.granted:
        words, said = f"{level} · {standard}", "is certified for"
    else:
        words, said = f"{level} · not granted", "is not certified for"
    return shown_line(words), shown_line(f"{name} {said} level {level} of pipeconform's {standard}")


def _right_part(left: float, width: float) -> str:
    """A box whose right corners are round; no clip, whose id two badges on a page would share."""
    round_, straight = number(_CORNER), number(_HEIGHT - 2 * _CORNER)
    corner = f"a{round_} {round_} 0 0 1"
    return (
        f"M{number(left)} 0h{number(width - _CORNER)}{corner} {round_} {round_}v{straight}"
        f"{corner} -{round_} {round_}H{number(left)}z"
    )


def _word(words: str, x: float, *, width: float) -> str:
    """Text that is as wide as planned in every font."""
    return text(words, x, 14, textLength=width, lengthAdjust="spacingAndGlyphs")


def _width(words: str) -> float:
    """About the width of text in the badge's font."""
    return sum(4.2 if one in _NARROW else 10.2 if one in _WIDE else 7.0 for one in words)


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;")
