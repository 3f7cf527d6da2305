"""MkDocs hook: what reads on a forge reads on the site, too.

Links that lead out of docs/ to the sources become plain text, and the entries of reference pages, which are written for
those who read them without the site, are left to mkdocstrings.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

_ENTRY = re.compile(r"^<!-- (::: \S+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Keep links between pages; of a link to a file of the repository, keep the text and the path."""
    markdown = _ENTRY.sub(r"\1", markdown)
    pages = {file.src_uri for file in files}

    def replace(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        if path in pages:
            return found[0]
        source = (Path(config.docs_dir) / path).resolve()
        if not source.exists():
            return found[0]  # a wrong link: MkDocs says so
        name = source.relative_to(Path(config.docs_dir).parent.resolve()).as_posix()
        return text if name in text else f"{text} (`{name}`)"

    return _LINK.sub(replace, markdown)
