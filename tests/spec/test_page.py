"""The page of the standard is complete, and the committed one is up to date."""

import re

import pytest

from pipeconform.spec import STANDARD_VERSION, certification_levels, mandatory, requirements
from pipeconform.spec.page import standard_page
from pipeconform.spec.wrappers import wrapper_chapter


def test_every_requirement_and_every_level_has_its_place():
    page = standard_page()

    rows = [*requirements(), *wrapper_chapter().requirements]
    assert [row.id for row in rows if f"\n### {row.id} {row.title}\n" not in page] == []
    assert [level.title for level in certification_levels() if f"\n### {level.title}\n" not in page] == []
    assert f"\nVersion {STANDARD_VERSION}: " in page


def test_a_level_s_requirements_are_links_with_titles_and_lead_to_their_headings():
    levels = standard_page().partition("## Levels")[2].partition("## Profiles")[0]
    links = dict(re.findall(r"\[([A-Z]+-\d+ [^\]]+)\]\(#([^)]+)\)", levels))
    named = set(re.findall(r"\b([A-Z]{3}-\d+)\b", levels))

    assert set(links) == {
        f"{row.id} {row.title}" for level in certification_levels() for row in mandatory(level)
    }
    assert named == {words.split()[0] for words in links}
    assert links["FWD-17 The model's own hooks"] == "fwd-17-the-models-own-hooks"


def test_a_level_that_is_not_available_says_so(monkeypatch):
    monkeypatch.setattr("pipeconform.spec.page.missing", lambda level: ("DPC-98", "DPC-99"))

    assert (
        "**Not available in this version of the standard**: it has no DPC-98, DPC-99 yet." in standard_page()
    )


def test_what_looks_like_markup_means_itself():
    assert re.findall(r"<[A-Za-z/]", standard_page()) == []


def test_the_committed_page_is_up_to_date(pytestconfig: pytest.Config):
    committed = (pytestconfig.rootpath / "docs/standard.md").read_text("utf-8")

    assert committed == standard_page(), "run 'make standard' and commit docs/standard.md"
