"""docs/reference has an entry for every feature, family and public name."""

import importlib
import re

import pytest

from pipeconform.claims import Feature
from pipeconform.schedule import families
from pipeconform.wrapper import WrapperFeature
from tests.docs.api import API_PAGES, filled, listed
from tests.docs.reference import FOLDER, PAGES, anchor_of


@pytest.fixture
def headings(request):
    return re.findall(r"^#{2,3} (.+)$", (FOLDER / request.param).read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_is_written_now(name):
    assert (FOLDER / name).read_text("utf-8") == PAGES[name]()


@pytest.mark.parametrize("headings", ["features.md"], indirect=True)
def test_every_feature_has_its_entry(headings):
    entries = [one for one in headings if not one.startswith("Of ")]

    assert entries == [feature.value for feature in (*Feature, *WrapperFeature)]


@pytest.mark.parametrize("headings", ["families.md"], indirect=True)
def test_every_family_has_its_entry(headings):
    assert headings == [one.name for one in families()]


@pytest.mark.parametrize("name", API_PAGES)
def test_the_entries_of_names_are_what_the_sources_say_now(name):
    page = (FOLDER / name).read_text("utf-8")

    assert filled(page) == page


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("adapter.md", "pipeconform.adapter"),
        ("wrapper.md", "pipeconform.wrapper"),
        ("schedule.md", "pipeconform.schedule"),
    ],
)
def test_every_public_name_has_one_entry(page, module):
    names = listed((FOLDER / page).read_text("utf-8"))

    assert sorted(names) == sorted(f"{module}.{name}" for name in importlib.import_module(module).__all__)


def test_the_names_of_the_package_have_entries_where_they_are_at_home():
    import pipeconform

    found = {
        one.rpartition(".")[2]
        for page in ("python.md", "adapter.md")
        for one in listed((FOLDER / page).read_text("utf-8"))
    }

    assert set(pipeconform.__all__) - {"__version__"} - found == set()


def test_a_heading_s_anchor_is_the_site_s():
    from markdown.extensions.toc import slugify

    for heading in ("FWD-17 The model's own hooks", "DPW-17 A user's hook", "TRN-5 Frozen parameters"):
        assert anchor_of(heading) == slugify(heading, "-")
