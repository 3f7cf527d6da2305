"""Makes untrusted text safe to show: an implementation, a package or a file may contain anything.

Terminals, pages and logs get text through here (`pipeconform.commands.say`, `pipeconform.report.console`, the report's
templates), so that no name can move a cursor, hide a line or turn its reading direction.
"""

from __future__ import annotations

import re

__all__ = ["shown", "shown_json", "shown_line"]

LONGEST_LINE = 4_000
LONGEST = 1_000_000

# Unicode's controls (C0, DEL, C1), formats (directions, zero widths, tags), lone surrogates, separators of lines and
# paragraphs, and letters that are blank. A table, because a search through `unicodedata` would take 0.3 s.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u115f-\u1160\u17b4-\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_BLOCK = re.compile(f"[{_HIDDEN}]")
_LINE = re.compile(f"[{_HIDDEN}\n\t]")
_LONG = re.compile(f"[^\n]{{{LONGEST_LINE + 1},}}")


def shown(text: str, *, limited: bool = True) -> str:
    """`text`, of several lines, with every character that is not one visible sign written as Python's escape.

    If `limited`, lines and texts that are too long to be read are cut, with a note.
    """
    if text.isascii() and text.isprintable() and len(text) <= LONGEST_LINE:
        return text
    text = _BLOCK.sub(_escaped, text)
    if not limited:
        return text
    text = _LONG.sub(lambda found: _cut(found[0], LONGEST_LINE), text)
    return text if len(text) <= LONGEST else _cut(text, LONGEST)


def shown_line(text: str, *, limit: int = LONGEST_LINE) -> str:
    """`text` as one line: a line feed is escaped, too, so that a name cannot begin a line of its own."""
    if not (text.isascii() and text.isprintable()):
        text = _LINE.sub(_escaped, text)
    return text if len(text) <= limit else _cut(text, limit)


def shown_json(text: str) -> str:
    """Return equivalent JSON with hidden characters written as JSON's own escapes."""
    return _BLOCK.sub(_json_escaped, text)


def _cut(text: str, limit: int) -> str:
    return f"{text[:limit]} … ({len(text) - limit} more characters)"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
