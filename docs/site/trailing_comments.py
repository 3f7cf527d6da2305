"""A griffe extension: the reference pages also show what stands behind a field, and the meaning of a feature.

pipeconform documents most fields in a string below them. Short ones have a comment on their line, and a feature has its
meaning in its value.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from griffe import Attribute, Docstring, Extension

_COMMENT = re.compile(r"\s#\s+(?!noqa|type:)(.+)$")


class TrailingComments(Extension):
    """Gives attributes without a docstring the comment on their line, or the text in their value."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **_: Any) -> None:
        """Called for every attribute that is found in the sources."""
        if attr.docstring is None and (text := _meaning(node) or _comment(attr)):
            attr.docstring = Docstring(text, parent=attr, lineno=attr.lineno)


def _comment(attr: Attribute) -> str:
    lines = [found[1] for line in attr.lines if (found := _COMMENT.search(line))]
    return lines[-1] if lines else ""


def _meaning(node: Any) -> str:
    """The second part of ``NAME = "value", "meaning"``."""
    match getattr(node, "value", None):
        case ast.Tuple(elts=[ast.Constant(value=str()), ast.Constant(value=str(meaning))]):
            return meaning
    return ""
