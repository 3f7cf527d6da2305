"""What tests of pages in Chromium share: the marks, the browser's arguments, the sizes of windows."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

CHROMIUM = shutil.which("chromium")
_MISSING = [
    name for name in ("playwright", "axe_playwright_python") if importlib.util.find_spec(name) is None
]

IN_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (Debian: apt-get install chromium)"),
    pytest.mark.skipif(bool(_MISSING), reason="playwright or axe is missing (pip install '.[browser]')"),
]

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 120_000  # ms; a machine may be busy, and nothing is concluded from a wait

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
LOOKS = [
    pytest.param({"viewport": size, "color_scheme": scheme}, id=f"{name}-{scheme}")
    for name, size in (("wide", WIDE), ("phone", PHONE))
    for scheme in ("light", "dark")
]
"""What a page is opened with: both sizes in both colour schemes."""


def settled(tab):
    """Wait until a filter has been applied: it is at the next frame but one."""
    tab.wait_for_timeout(200)
    tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def box(found):
    return found.evaluate("e => e.getBoundingClientRect().toJSON()")


def in_sight(found):
    """Whether an element is wholly inside the window as it is scrolled."""
    place, size = box(found), found.page.viewport_size
    return (
        place["top"] >= 0
        and place["left"] >= 0
        and place["bottom"] <= size["height"]
        and place["right"] <= size["width"]
    )


def axe(tab):
    """What axe objects to, with everything unfolded."""
    from axe_playwright_python.sync_playwright import Axe

    tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    found = Axe().run(tab).response["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found]
