"""The tables of the pages are whole: every row has as many cells as its header."""

import re
from pathlib import Path

_CODE = re.compile(r"`[^`]*`")


def crooked(text):
    """The rows that have another number of cells than the rows above them."""
    wrong, width, fenced = [], 0, False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if fenced or not line.startswith("|"):
            width = 0
            continue
        cells = _CODE.sub("", line).replace("\\|", "").count("|")
        wrong += [(number, line)] if width and cells != width else []
        width = width or cells
    return wrong


def test_a_crooked_row_is_found():
    good = "| a | b |\n|---|---|\n| `x|y` | 2 \\| 3 |\n"
    assert not crooked(good + "\n| c |\n|---|\n| 1 |\n")
    assert crooked(good + "| 1 | 2 | 3 |\n") == [(4, "| 1 | 2 | 3 |")]


def test_the_tables_of_all_pages_are_whole(pytestconfig):
    root: Path = pytestconfig.rootpath
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("benchmarks/**/*.md")]
    found = {page.relative_to(root): wrong for page in pages if (wrong := crooked(page.read_text("utf-8")))}
    assert len(pages) > 40
    assert not found
