"""Pages as trees: what a test asks of a page is asked of its elements, not of its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeconform.report.html import render_page

_ABSENT = object()
_EMPTY = {"meta", "link", "input", "br", "wbr", "rect", "path", "polyline"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def all(self, name: str | None = None, **wanted: str) -> list[Element]:
        """Elements below, by name and by attributes; ``cls`` stands for one of the classes."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if (name is None or child.name == name) and child.has(**wanted):
                    found.append(child)
                found += child.all(name, **wanted)
        return found

    def one(self, name: str | None = None, **wanted: str) -> Element:
        (found,) = self.all(name, **wanted)
        return found

    def has(self, *, cls: str | None = None, **wanted: str) -> bool:
        classes = (self.attributes.get("class") or "").split()
        return (cls is None or cls in classes) and all(
            self.attributes.get(key.replace("_", "-"), _ABSENT) == value for key, value in wanted.items()
        )

    @property
    def text(self) -> str:
        """All words below, with single spaces."""
        return " ".join(self._words().split())

    def _words(self) -> str:
        return "".join(child if isinstance(child, str) else child._words() for child in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("document")
        self.open = [self.root]
        self.stray: list[str] = []

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in _EMPTY:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in _EMPTY:
            return
        if self.open[-1].name != tag:
            self.stray.append(f"</{tag}> closes <{self.open[-1].name}>")
            return
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parse(text: str) -> Element:
    reader = _Reader()
    reader.feed(text)
    assert reader.stray == []
    assert [element.name for element in reader.open] == ["document"]
    return reader.root


@pytest.fixture
def page():
    """Render results and read the page."""

    def render(*results, where="found/result.json", known=None):
        return parse(render_page([(result, Path(where)) for result in results], known_causes=known))

    return render
