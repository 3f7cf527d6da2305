"""What strangers say is shown without steering who reads it."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path

import pytest

import pipeconform
from pipeconform.showing import shown, shown_json, shown_line

ROOT = Path(pipeconform.__file__).parent


def hidden(text: str) -> list[str]:
    """Characters that a terminal or a browser would not print as one visible sign."""
    return [one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


EVERYTHING = "".join(map(chr, range(0x110000)))


def test_no_character_is_hidden_but_tab_and_line_feed():
    assert set(hidden(shown(EVERYTHING, limited=False))) == {"\n", "\t"}
    assert hidden(shown_line(EVERYTHING, limit=len(EVERYTHING) * 10)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2K\rVERIFIED", r"\x1b[2K\rVERIFIED"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2K", r"\x9b2K"),
        ("nul\0", r"nul\x00"),
        ("\u202eDEIFIREV", r"\u202eDEIFIREV"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("lone \udc9b", r"lone \udc9b"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("p ≥ 2, größer → 量子", "p ≥ 2, größer → 量子"),
    ],
)
def test_what_is_hidden_is_an_escape(text, expected):
    assert shown(text) == expected


def test_a_line_stays_one_line():
    assert (
        shown_line("name\nVERIFIED: name\u2028deserves\x85all")
        == r"name\nVERIFIED: name\u2028deserves\x85all"
    )


def test_what_is_too_long_is_cut_and_says_so():
    assert shown("x" * 5000 + "\nrest") == "x" * 4000 + " … (1000 more characters)\nrest"
    assert len(shown("x\n" * 10_000_000)) < 1_100_000


def test_json_says_the_same():
    text = json.dumps({"name": "a\x9b\u202e\U000e0041b"}, ensure_ascii=False)
    assert hidden(shown_json(text)) == []
    assert json.loads(shown_json(text)) == json.loads(text)


PRINTERS = {"commands/say.py", "report/console.py", "commands/schedule.py", "attach/on_ray.py"}
"""`schedule draw` prints colours of its own, of a table that is numbers."""


def _prints(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("echo", "secho")
            and isinstance(node.value, ast.Name)
        ):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console":
            return True
        if isinstance(node, ast.ClassDef) and any(
            getattr(base, "id", "") == "Console" for base in node.bases
        ):
            return True
    return False


def test_commands_print_by_one_function_and_one_console():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if _prints(ast.parse(path.read_text("utf-8")))
    }
    assert found == PRINTERS
