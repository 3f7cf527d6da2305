"""What writes programs stays small; what a program carries along is judged elsewhere."""

import ast
import io
import tokenize
from importlib.resources import files
from pathlib import Path

CARRIED = {"program.py", "question.py"}
"""What a program itself runs, from its archive."""
MOST = 700
SKIPPED = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def docstring_lines(tree):
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {
        line
        for node in texts
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }


def lines_of_code(text):
    """Without blank lines, comments and docstrings."""
    tokens = (one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type not in SKIPPED)
    code = {line for one in tokens for line in range(one.start[0], one.end[0] + 1)}
    return len(code - docstring_lines(ast.parse(text)))


def test_lines_of_code_are_counted_without_blanks_comments_and_docstrings():
    assert (
        lines_of_code(
            '"""A module."""\n\n# why\nx = (\n    1,\n)\n\n\ndef f():\n    """Text."""\n    return x\n'
        )
        == 5
    )


def test_what_writes_programs_and_is_not_carried_in_them_has_at_most_700_lines_of_code():
    folder = Path(str(files("pipeconform.export")))
    written = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    assert written.keys() >= CARRIED
    counted = {name: lines_of_code(path.read_text("utf-8")) for name, path in written.items()}
    assert sum(number for name, number in counted.items() if name not in CARRIED) <= MOST, counted
