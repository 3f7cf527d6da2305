"""The page and the badge say what the result says; whatever else they say is refused."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from pipeconform.certificate.badge import badge
from pipeconform.certificate.checks import check_package
from pipeconform.certificate.contents import BADGE, PAGE, digest_of
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed, views
from pipeconform.report.result import write_result
from pipeconform.spec import certification_level, core_requirements, mandatory
from tests.certificate.conftest import violated
from tests.facts import tells
from tests.report.conftest import make
from tests.report.html.chromium import IN_CHROMIUM, PATIENCE, PHONE, WIDE, axe
from tests.report.html.conftest import parse

__all__ = ["make"]

SVG = "{http://www.w3.org/2000/svg}"
GRANTED = "'toy GPipe 1.0' is certified for level Forward of pipeconform's standard 0.1"


def page_of(contents):
    return read_page(views(contents)[PAGE].decode())


def read_page(text):
    return parse(re.sub("(<img [^>]*)>", r"\1/>", text))


def badge_of(certificate):
    root = ET.fromstring(badge(certificate))
    return root, [one.text for one in root.iter(f"{SVG}text")]


def replaced(contents, **fields):
    return msgspec.structs.replace(contents.certificate, **fields)


# ------------------------------------------------------------------ the badge


@pytest.mark.parametrize(
    ("fields", "words", "title"),
    [
        ({}, "Forward · standard 0.1", GRANTED),
        (
            {"granted": False, "reasons": ("FWD-1 failed",)},
            "Forward · not granted",
            GRANTED.replace("is certified", "is not certified"),
        ),
        (
            {"granted": False, "shard": "1/2"},
            "Forward · shard 1/2",
            GRANTED.replace("is certified", "is part of a certification"),
        ),
    ],
)
def test_a_badge_says_level_standard_and_whose_it_is(contents, fields, words, title):
    root, shown = badge_of(replaced(contents, **fields))

    assert shown == ["pipeconform", words]
    assert (root.get("role"), root.get("aria-label"), root.find(f"{SVG}title").text) == ("img", title, title)


def test_a_badge_is_one_picture_that_loads_nothing_and_whose_text_fits(contents):
    root, _ = badge_of(contents.certificate)
    wide = float(root.get("width"))

    assert {one.tag.removeprefix(SVG) for one in root.iter()} == {"svg", "title", "rect", "path", "g", "text"}
    assert not [
        name for one in root.iter() for name in one.attrib if "href" in name or name in ("id", "style")
    ]
    assert all(float(one.get("x")) + float(one.get("textLength")) < wide for one in root.iter(f"{SVG}text"))


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("fields", [{}, {"granted": False}, {"shard": "1/2"}])
def test_a_badge_can_be_read(contents, fields):
    """White text on each of its colours has the contrast that WCAG 2.2 demands of small text."""
    root, _ = badge_of(replaced(contents, **fields))
    colours = {one.get("fill") for one in root.iter() if one.tag in (f"{SVG}rect", f"{SVG}path")}

    assert len(colours) == 2
    assert min(1.05 / (luminance(colour) + 0.05) for colour in colours) >= 4.5


def test_a_name_cannot_break_a_badge_or_a_page(contents):
    hostile = '<script>alert(1)</script>"&\x1b[2J'
    certificate = replaced(contents, implementation=hostile)
    root, _ = badge_of(certificate)
    document = page_of(msgspec.structs.replace(contents, certificate=certificate))

    said = root.get("aria-label")
    assert said.startswith(r"""'<script>alert(1)</script>"&\x1b[2J 1.0' is certified""")
    assert document.all("script") == []
    assert document.one("h1").text == r'<script>alert(1)</script>"&\x1b[2J 1.0'


# ------------------------------------------------------------------ the page


def test_a_page_has_the_title_of_every_requirement_of_the_level_and_a_link_to_it(contents):
    document = page_of(contents)
    rows = mandatory(certification_level("forward"))
    links = {
        one.attributes["href"]: one.text for one in document.all("a") if one.text.startswith(("FWD", "COM"))
    }

    assert links == {f"#{row.id}": f"{row.id} {row.title}" for row in rows}
    for row in rows:
        section = document.one("section", id=row.id)
        assert row.statement in section.text.replace("’", "'")
        assert [one.attributes["href"] for one in section.all("a")] == [
            one.link for one in row.promise if one.link
        ]


def test_a_page_says_whether_the_level_is_granted_to_whom_and_what_became_of_each_requirement(contents):
    document = page_of(contents)
    outcomes = {
        row.one("th").text: row.one("td").text
        for table in document.all("table")
        for row in table.all("tr")[1:]
    }

    assert document.one("title").text == GRANTED
    assert (
        document.one("p", cls="verdict").text == "✓ Certified for level Forward of the standard, version 0.1"
    )
    assert document.one("img").attributes["alt"] == GRANTED
    assert set(outcomes.values()) == {"met under GPipe, 1F1B"}
    facts = dict(
        zip([one.text for one in document.all("dt")], [one.text for one in document.all("dd")], strict=True)
    )
    assert facts["Schedules"] == "GPipe, 1F1B"
    assert facts["Engine"].startswith("mine (3 files, 111111111111), torch 2.13.0")


def facts_of(contents):
    document = page_of(contents)
    return [
        (name.text, value.text) for name, value in zip(document.all("dt"), document.all("dd"), strict=True)
    ]


def test_a_page_says_what_was_judged_by_what_and_when(contents):
    certificate, result = contents.certificate, contents.result
    canaries = (msgspec.structs.replace(contents.canaries[0], detected=False), *contents.canaries[1:])
    made = msgspec.structs.replace(
        contents,
        canaries=canaries,
        certificate=replaced(contents, created="2026-01-02T03:04:05+00:00", weakening=("it lacks this",)),
    )
    number = len(canaries)

    assert facts_of(made) == [
        ("Implementation", "toy GPipe 1.0"),
        ("Adapter", f"mine.py:MyAdapter, SHA-256 {certificate.source_digest}"),
        ("Engine", dict(facts_of(contents))["Engine"]),
        ("Schedules", "GPipe, 1F1B"),
        ("Claim that weakens the judgement", "it lacks this"),
        ("Standard", "0.1, level forward"),
        ("Made", "2026-01-02 03:04:05 UTC"),
        ("Made with", f"pipeconform {certificate.product_version}, torch {result.environment.torch}"),
        ("Judged", f"{len(contents.cases)} cases on up to 4 ranks, drawn from seed 0"),
        ("Canaries", f"{number - 1} of {number} wrong implementations detected"),
        ("Run", "a" * 32),
    ]


@pytest.mark.parametrize(("mixed", "words"), [(False, "2"), (True, "2, in different environments")])
def test_a_page_says_of_how_many_shards_a_package_is_made(contents, mixed, words):
    certificate = replaced(contents, shards=2, mixed_environments=mixed, run_ids=("a" * 32, "b" * 32))
    facts = dict(facts_of(msgspec.structs.replace(contents, certificate=certificate)))

    assert facts["Shards"] == words
    assert facts["Run"] == f"{'a' * 32}, {'b' * 32}"
    assert "Shards" not in dict(facts_of(contents))


def with_outcomes(contents, *outcomes, requirement="FWD-1"):
    """One requirement's cells replaced by others: schedule and status."""
    first = contents.result.cells[0]
    others = [one for one in contents.result.cells if one.requirement != requirement]
    cells = [
        msgspec.structs.replace(first, requirement=requirement, schedule=schedule, status=status)
        for schedule, status in outcomes
    ]
    result = msgspec.structs.replace(contents.result, cells=(*cells, *others))
    return msgspec.structs.replace(contents, result=result)


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([("A", "passed"), ("B", "passed")], ["met under A, B"]),
        ([(name, "passed") for name in "ABCD"], ["met under A, B, C, D"]),
        ([(name, "passed") for name in "ABCDE"], ["met under all 5 schedules"]),
        ([("A", "passed"), ("A", "passed")], ["met under A"]),
        ([("A", "failed"), ("B", "passed")], ["failed under A", "met under B"]),
        (
            [*((name, "passed") for name in "ABCDE"), ("F", "not_claimed")],
            ["met under A, B, C, D, E", "not claimed under F"],
        ),
        ([("A", "not_claimed"), ("B", "not_claimed")], ["not claimed"]),
        ([("A", "nothing_compared")], ["nothing compared under A"]),
        ([("A", "skipped")], ["skipped under A"]),
        ([], ["not judged here"]),
    ],
    ids=lambda value: "" if isinstance(value, list) and value and isinstance(value[0], tuple) else str(value),
)
def test_a_page_says_under_which_schedules_a_requirement_became_what(contents, outcomes, words):
    document = page_of(with_outcomes(contents, *outcomes))
    row = next(
        row for row in document.all("table")[0].all("tr")[1:] if row.one("th").text.startswith("FWD-1 ")
    )

    assert [one.text for one in row.all("span")] == words


@pytest.mark.parametrize(
    ("outcomes", "counts"),
    [
        ([("A", "passed")], "{total} requirements; {total} met."),
        (
            [("A", "passed"), ("B", "not_claimed"), ("C", "failed")],
            "{total} requirements; {others} met; 1 not met.",
        ),
        ([("A", "passed"), ("B", "not_claimed")], "{total} requirements; {total} met."),
        ([("A", "skipped")], "{total} requirements; {others} met; 1 not claimed, or not judged here."),
        ([], "{total} requirements; {others} met; 1 not claimed, or not judged here."),
    ],
    ids=["met", "violated somewhere", "claimed somewhere", "skipped", "not judged"],
)
def test_a_page_counts_requirements_by_the_worst_that_became_of_them(contents, outcomes, counts):
    total = len(mandatory(certification_level("forward")))
    text = page_of(with_outcomes(contents, *outcomes)).one("body").text

    assert counts.format(total=total, others=total - 1) in " ".join(text.split())


def test_a_page_marks_what_cannot_be_left_unclaimed(contents):
    level = certification_level("forward")
    marked = {
        row.one("th").text.split()[0]
        for table in page_of(contents).all("table")
        for row in table.all("tr")[1:]
        if row.one("th").text.endswith(" *")
    }

    assert marked == set(core_requirements(level)) < {row.id for row in mandatory(level)}


def test_a_refused_package_s_page_has_the_reasons_and_the_causes(make, contents):
    document = page_of(violated(make, contents))
    lists = [[item.text for item in one.all("li")] for one in (*document.all("ul"), *document.all("ol"))]

    assert document.one("p", cls="verdict").text.startswith("✗ Not certified for level Forward")
    assert lists == [
        ["FWD-1 failed under GPipe"],
        ["FWD-1 Outputs: silently wrong: output value under GPipe"],
    ]
    outcomes = {row.one("th").text: row.one("td").text for row in document.all("table")[0].all("tr")[1:]}
    assert outcomes["FWD-1 Outputs *"] == "failed under GPipemet under 1F1B"


@pytest.mark.parametrize(("requirement", "links"), [("FWD-1", ["#FWD-1"]), ("TRN-1", [])])
def test_a_cause_links_to_its_requirement_if_that_is_on_the_page(make, contents, requirement, links):
    cell = make.cell(requirement, "GPipe", make.violation(requirement, "GPipe"))
    result = msgspec.structs.replace(contents.result, cells=(cell,))
    refused = msgspec.structs.replace(
        contents, result=result, certificate=replaced(contents, granted=False, reasons=("it failed",))
    )
    (cause,) = page_of(refused).one("ol").all("li")

    assert cause.text.startswith(f"{requirement} ")
    assert [one.attributes["href"] for one in cause.all("a")] == links


def test_a_shard_s_page_says_that_it_decides_nothing(shard):
    document = page_of(shard(1))

    assert "Shard 1/2" in document.one("p", cls="verdict").text
    assert "certified" not in document.one("p", cls="verdict").text


def test_a_page_loads_nothing(contents):
    text = views(contents)[PAGE].decode()
    document = read_page(text)

    assert (
        document.one("meta", http_equiv="Content-Security-Policy")
        .attributes["content"]
        .startswith("default-src 'none'; img-src data:; ")
    )
    loaded = [one.attributes.get("src") or "" for one in document.all() if "src" in one.attributes]
    assert [one.partition(",")[0] for one in loaded] == ["data:image/svg+xml;base64"]
    assert not re.search(r"@import|url\(", text)


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(size, scheme, id=f"{size['width']}-{scheme}", marks=IN_CHROMIUM)
        for size in (WIDE, PHONE)
        for scheme in ("light", "dark")
    ],
)
def test_axe_finds_nothing_and_nothing_is_wider_than_its_window(
    make, contents, tmp_path, browser, size, scheme
):
    (tmp_path / "page.html").write_bytes(views(violated(make, contents))[PAGE])

    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.goto((tmp_path / "page.html").as_uri(), timeout=PATIENCE)
    found = axe(page)
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()

    assert found == []
    assert wide == size["width"]


# ------------------------------------------------------------------ verification

FORGED = {
    "a level more": (BADGE, b"Forward", b"Full"),
    "another name": (BADGE, b"toy GPipe", b"my engine"),
    "another colour": (BADGE, b"#1a6b34", b"#1a6b35"),
    "another verdict": (PAGE, b"Certified for level Forward", b"Certified for level Full"),
    "a sentence more": (PAGE, b"<main>", b"<main><p>Also certified for level Full.</p>"),
    "another standard": (PAGE, b"version 0.1", b"version 9.9"),
}


@pytest.mark.parametrize(("name", "was", "becomes"), FORGED.values(), ids=FORGED)
def test_a_forged_page_or_badge_is_refused(contents, tmp_path, name, was, becomes):
    """Though the manifest is right."""
    files = packed(contents)
    assert was in files[name]
    write_package({**files, name: files[name].replace(was, becomes)}, tmp_path / "mine.zip")
    checked = check_package(tmp_path / "mine.zip")

    (doubt,) = checked.doubts
    assert doubt.file == name
    assert tells(doubt.text, "something else", "made from the other files")
    assert not checked.granted


@pytest.mark.parametrize("name", [PAGE, BADGE])
def test_a_package_without_its_page_or_badge_is_refused(contents, tmp_path, name):
    files = packed(contents)
    del files[name]
    write_package(files, tmp_path / "mine.zip")

    (doubt,) = check_package(tmp_path / "mine.zip").doubts
    assert doubt.file == name
    assert tells(str(doubt), name, "missing")


def test_the_badge_of_a_granted_package_does_not_fit_a_refused_one(make, contents, tmp_path):
    good, bad = packed(contents), packed(violated(make, contents))
    write_package({**bad, BADGE: good[BADGE], PAGE: good[PAGE]}, tmp_path / "mine.zip")
    doubts = check_package(tmp_path / "mine.zip").doubts

    assert [doubt.file for doubt in doubts] == [PAGE, BADGE]


def test_a_page_of_another_version_is_doubted_with_the_version_to_verify_with(contents, tmp_path):
    machine = contents.environment[0]
    machine = msgspec.structs.replace(machine, packages={**machine.packages, "pipeconform": "0.0.9"})
    contents = msgspec.structs.replace(
        contents,
        environment=(machine,),
        certificate=replaced(contents, environment_digests=(digest_of(machine),)),
    )
    files = packed(contents)
    write_package(files, tmp_path / "sound.zip")
    write_package({**files, BADGE: files[BADGE] + b"\n"}, tmp_path / "other.zip")

    assert check_package(tmp_path / "sound.zip").doubts == ()
    first, second = map(str, check_package(tmp_path / "other.zip").doubts)
    assert "made with pipeconform 0.0.9" in first
    assert first.endswith("verify with 0.0.9")
    assert second.startswith(f"{BADGE}: says something else")


# ------------------------------------------------------------------ pipeconform report PACKAGE


@pytest.fixture
def package(contents, tmp_path):
    write_package(packed(contents), tmp_path / "mine.pipeconform.zip")
    return tmp_path / "mine.pipeconform.zip"


def test_report_writes_the_page_and_the_badge_of_a_package(typed, package, contents, tmp_path):
    assert typed("report", package.name) == (0, "report: mine.html\nbadge: mine.svg\n", "")
    assert (tmp_path / "mine.html").read_bytes() == views(contents)[PAGE]
    assert (tmp_path / "mine.svg").read_bytes() == views(contents)[BADGE]


def test_report_takes_a_place_for_the_page(typed, package, tmp_path):
    (tmp_path / "site").mkdir()

    assert (
        typed("report", package.name, "--out", "site")[1] == "report: site/mine.html\nbadge: site/mine.svg\n"
    )
    assert typed("report", package.name, "--out", "site/index.html")[1].startswith(
        "report: site/index.html\n"
    )


def test_report_refuses_a_package_in_doubt_and_writes_nothing(typed, contents, tmp_path):
    write_package({**packed(contents), BADGE: b"<svg/>"}, tmp_path / "forged.zip")

    code, out, err = typed("report", "forged.zip")
    assert (code, out) == (2, "")
    assert tells(err, "pipeconform", "forged.zip", "badge.svg", "something else")
    assert [path.name for path in tmp_path.iterdir()] == ["forged.zip"]


def test_report_takes_one_package_and_nothing_else(typed, package):
    code, _, err = typed("report", package.name, package.name)

    assert (code, "give one package and nothing else" in err) == (2, True)


def test_report_never_overwrites_the_package(typed, package):
    before = package.read_bytes()

    assert typed("report", package.name, "--out", package.name)[0] == 2
    assert package.read_bytes() == before


def test_report_opens_the_page_in_the_user_s_browser(make, tmp_path):
    write_result(make.result(make.cell("FWD-1", "GPipe")), tmp_path / "result.json")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pipeconform", "report", "result.json", "--open"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "BROWSER": str(browser)},
    )

    assert (done.stdout, done.stderr) == ("report: report.html\n", "")
    assert (tmp_path / "opened").read_text() == f"{Path(tmp_path, 'report.html').as_uri()}\n"
