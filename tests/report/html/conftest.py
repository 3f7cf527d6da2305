"""Pages as trees: what a test asks of a page is asked of its elements, not of its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeconform.report.html import render_page
from tests.report.html.chromium import PATIENCE

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


@pytest.fixture
def shown(browser, tmp_path):
    """Open a file or the text of a page; what the console says must stay empty to the end of the test."""
    contexts, said = [], []

    def open_page(page, *, fragment="", media=None, **context):
        if isinstance(page, str):
            text, page = page, tmp_path / f"page{len(contexts)}.html"
            page.write_text(text, "utf-8")
        contexts.append(browser.new_context(**context))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(PATIENCE)
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on(
            "request", lambda request: said.append(request.url) if request.url.startswith("http") else None
        )
        if media is not None:
            tab.emulate_media(media=media)
        tab.goto(page.as_uri() + fragment)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture
def opened(shown):
    """Open a page of results."""

    def open_page(*results, **options):
        return shown(render_page([(one, Path("result.json")) for one in results]), **options)

    return open_page
