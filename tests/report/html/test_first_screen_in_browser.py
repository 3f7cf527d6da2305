"""The first screens in Chromium, on a desk and on a phone: what a reader sees before touching anything."""

from __future__ import annotations

import pytest

from pipeconform.ranks.waiting import Place
from pipeconform.spec import requirements
from tests.report.html.chromium import IN_CHROMIUM, LOOKS, PHONE, WIDE, axe, box, in_sight, settled

pytestmark = IN_CHROMIUM

TITLES = {row.id: row.title for row in requirements()}
BETWEEN = pytest.param({"viewport": {"width": 900, "height": 700}}, id="between")
SIGNATURES = ("output value", "hang", "raised RuntimeError: no", "boundary tensors beyond the bound", "died")
STATUSES = ("failed", "hung", "error", "failed", "crashed")


@pytest.fixture
def large(make):
    """All requirements under two schedules: sixteen causes, a hang among eight ranks, many that are not claimed."""
    rows = requirements()
    cells = []
    for k, row in enumerate(rows):
        for schedule in ("GPipe", "InterleavedZeroBubble"):
            if k % 5 == 2 and k < 80:
                kind = k // 5 % 5
                violation = make.violation(
                    row.id,
                    schedule,
                    id=f"{row.id}:{schedule}:default:1f3a",
                    status=STATUSES[kind],
                    signature=f"{SIGNATURES[kind]} {row.id}",
                    message=f"it is wrong in {row.id}\nand here is why",
                    places=waiting(8) if STATUSES[kind] == "hung" else (),
                )
                cells.append(make.cell(row.id, schedule, violation))
            elif k % 5 == 3:
                reason = f"Feature.{row.id} is not claimed"
                cells.append(make.cell(row.id, schedule, status="not_claimed", judgements=0, reason=reason))
            else:
                cells.append(make.cell(row.id, schedule))
    return make.result(*cells)


def waiting(ranks):
    return tuple(
        Place(
            rank=rank,
            verdict="stuck",
            waits=f"receive from rank {(rank + 1) % ranks}",
            waits_for=((rank + 1) % ranks,),
        )
        for rank in range(ranks)
    )


def reached(tab, identifier):
    """Whether the element with this id is in the window and its beginning is not covered by anything."""
    settled(tab)
    return tab.evaluate(
        """id => {
          const target = document.getElementById(id);
          const {top, left} = target.getBoundingClientRect();
          const over = document.elementFromPoint(left + 4, top + 4);
          return top >= 0 && top < innerHeight && over !== null && (over === target || target.contains(over));
        }""",
        identifier,
    )


@pytest.mark.parametrize("look", LOOKS)
def test_verdict_harm_levels_and_first_causes_are_in_the_first_screen(opened, large, look):
    tab = opened(large, **look)

    assert in_sight(tab.locator(".verdict"))
    assert in_sight(tab.locator(".top .harms"))
    assert in_sight(tab.locator(".levels"))
    assert in_sight(tab.locator("#causes li").nth(0))
    assert in_sight(tab.locator("#causes li").nth(1))
    assert tab.locator("#causes li").count() == 16
    assert in_sight(tab.locator("#chapters")) is (look["viewport"] == WIDE)


@pytest.mark.parametrize("look", LOOKS)
def test_the_cards_begin_within_four_screens(opened, large, look):
    tab = opened(large, **look)
    screen = look["viewport"]["height"]

    assert box(tab.locator("#chapters"))["bottom"] < 3 * screen
    assert box(tab.locator(".violation").first)["top"] < 4 * screen


@pytest.mark.parametrize("look", LOOKS)
def test_the_first_screen_answers_in_words(opened, large, look):
    """For which level, what is broken, how badly, what was not claimed."""
    tab = opened(large, **look)
    harms = [one.text_content().rpartition(" ") for one in tab.locator(".top .harms li").all()]
    headings = tab.locator("#causes h3").all_text_contents()
    not_claimed = tab.locator(".top").get_by_role("link", name="requirements are not claimed")

    assert tab.locator(".verdict > span").last.text_content().startswith("Violates 16 of ")
    assert "Conformant for no level" in tab.locator(".conformant").text_content()
    assert [one.text_content().split()[1] for one in tab.locator(".levels li").all()][:2] == [
        "Forward",
        "Training",
    ]
    assert headings == [words for words, _, _ in harms]
    for (_, _, number), causes in zip(harms, tab.locator("#causes ol").all(), strict=True):
        assert causes.locator("li").count() == int(number)
        for link in causes.locator("li a").all():
            name, _, title = link.text_content().partition(" ")
            assert title == TITLES[name]
    assert in_sight(not_claimed)
    not_claimed.click()
    assert reached(tab, "unclaimed")
    tab.locator("#unclaimed tbody tr").first.wait_for(state="visible")


@pytest.mark.parametrize("look", LOOKS)
def test_every_cause_leads_to_its_card_which_opens_in_sight(opened, large, look):
    tab = opened(large, **look)
    for link in tab.locator("#causes li a").all()[::7]:
        identifier = link.get_attribute("href")[1:]
        card = tab.locator(f"[id='{identifier}']")

        assert not card.locator("article").first.is_visible()
        link.click()
        assert reached(tab, identifier)
        assert card.locator("article").first.is_visible()
        assert card.locator("summary b").first.text_content() in link.text_content()
        tab.evaluate("scrollTo(0, 0)")


@pytest.mark.parametrize("look", [*LOOKS, BETWEEN])
def test_nothing_that_a_link_jumps_to_is_covered(opened, large, look):
    """The bar of filters is as high as its words need, which the distance of a jump must follow."""
    tab = opened(large, **look)
    links = tab.evaluate(
        "Array.from(document.querySelectorAll('a[href^=\"#\"]'), a => a.getAttribute('href').slice(1))"
    )
    kinds = {}
    for identifier in links:
        kinds.setdefault(identifier.partition("-")[0], []).append(identifier)

    assert {"failures", "matrix", "counts", "environment", "harm", "v", "r", "unclaimed"} <= kinds.keys()
    for *_, identifier in kinds.values():
        tab.evaluate("id => { location.hash = id }", identifier)
        assert reached(tab, identifier), identifier


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_not_claimed_is_folded_until_it_is_asked_for(opened, large, look):
    tab = opened(large, **look)
    row = tab.locator("#unclaimed tbody tr").first

    assert not row.is_visible()
    assert tab.locator(".matrix .not_claimed").count() == 0
    tab.locator("#chapters a").click()
    row.wait_for(state="visible")

    tab.locator("#unclaimed > summary").click()
    tab.evaluate("document.getElementById('filters-fold').open = true")
    tab.get_by_role("checkbox", name="not claimed").check()
    settled(tab)
    assert row.is_visible()
    assert tab.locator(".matrix tbody tr[data-row]:visible").count() == 0

    tab.get_by_role("button", name="Clear").click()
    settled(tab)
    assert not row.is_visible()


@pytest.mark.parametrize("look", [*LOOKS, BETWEEN])
def test_the_matrix_keeps_its_headings_on_scrolling(opened, large, look):
    """Under the bar of filters where that sticks, and over the columns that they name."""
    tab = opened(large, **look)
    matrix = ".frame > .scroll"
    tab.evaluate("document.querySelectorAll('[data-of]')[60].scrollIntoView({block: 'center'})")
    tab.evaluate(f"document.querySelector('{matrix}').scrollLeft = 40")
    settled(tab)
    heads = tab.locator(".heads thead th").all()
    columns = tab.locator(f"{matrix} thead th").all()
    filters = box(tab.locator("#filters"))

    assert [one.text_content() for one in heads] == ["Requirement", "GPipe", "InterleavedZeroBubble"]
    for head, column in zip(heads, columns, strict=True):
        assert abs(box(head)["top"] - max(filters["bottom"], 0)) < 3
        assert abs(box(head)["left"] - box(column)["left"]) < 2
        assert box(column)["bottom"] < 0
    over = tab.evaluate(
        """() => {
          const {left, top} = document.querySelectorAll(".heads th")[1].getBoundingClientRect();
          for (const one of document.querySelectorAll(".heads")) one.style.pointerEvents = "auto";
          return document.elementFromPoint(left + 30, top + 8).closest(".heads") !== null;
        }"""
    )
    assert over


@pytest.mark.parametrize("look", LOOKS)
def test_copied_headings_follow_the_choice_of_a_schedule(opened, large, look):
    tab = opened(large, **look)
    tab.evaluate("document.getElementById('filters-fold').open = true")
    tab.locator("#schedule").select_option("InterleavedZeroBubble")
    settled(tab)
    names = tab.locator(".heads th").evaluate_all(
        "all => all.filter(e => e.checkVisibility()).map(e => e.textContent)"
    )

    assert names == ["Requirement", "InterleavedZeroBubble"]


def test_calm_chapters_of_the_matrix_are_folded_on_a_phone_only(opened, make):
    result = make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("TRN-1", "GPipe"),
        make.cell("TRN-2", "GPipe"),
    )
    row = "[data-of=r-TRN-1]"
    assert opened(result, viewport=WIDE).locator(row).is_visible()

    tab = opened(result, viewport=PHONE)
    assert tab.locator("[data-of=r-FWD-1]").is_visible()
    assert not tab.locator(row).is_visible()
    button = tab.get_by_role("button", name="TRN Losses, gradients and updates (2)")
    button.click()
    assert tab.locator(row).is_visible()
    assert button.get_attribute("aria-expanded") == "true"
    button.click()
    assert not tab.locator(row).is_visible()

    tab.evaluate("document.getElementById('filters-fold').open = true")
    tab.locator("#find").fill("losses")
    settled(tab)
    assert tab.locator("[data-of=r-TRN-2]").is_visible()
    tab.get_by_role("button", name="Clear").click()
    settled(tab)
    assert not tab.locator(row).is_visible()


def test_the_filters_are_folded_on_a_phone_and_never_on_a_desk(opened, large):
    assert not opened(large, viewport=PHONE).locator("#find").is_visible()
    assert opened(large, viewport=WIDE).locator("#find").is_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_the_chapters_are_a_picture_with_words(opened, large, look):
    tab = opened(large, **look)
    rows = tab.locator("#chapters tbody tr").all()
    pictures = tab.locator("#chapters").get_by_role("img").all()

    assert len(rows) == len(pictures) == 9
    for row, picture in zip(rows, pictures, strict=True):
        chapter = row.locator("b").text_content()
        squares = picture.locator("rect").count()
        assert picture.get_attribute("aria-label").startswith(f"{chapter}: ")
        assert row.locator(".number").text_content().endswith(f" of {squares}")
        assert box(picture)["right"] <= look["viewport"]["width"]


@pytest.mark.parametrize("look", LOOKS)
def test_pictures_stand_out_from_what_is_behind_them(opened, large, look):
    """axe looks at no picture: squares need a contrast of 3, words one of 4.5."""
    tab = opened(large, **look)
    tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    found = tab.evaluate(
        """() => {
          const pen = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
          const read = css => {
            pen.clearRect(0, 0, 1, 1);
            pen.fillStyle = css;
            pen.fillRect(0, 0, 1, 1);
            return Array.from(pen.getImageData(0, 0, 1, 1).data);
          };
          const bright = css => {
            const linear = x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
            const [r, g, b] = read(css).map(x => linear(x / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = e => {
            while (e.parentElement !== null && read(getComputedStyle(e).backgroundColor)[3] < 255) e = e.parentElement;
            return getComputedStyle(e).backgroundColor;
          };
          const contrast = e => {
            const [a, b] = [bright(getComputedStyle(e).fill), bright(behind(e.closest("svg")))];
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          };
          const all = pattern =>
            Array.from(document.querySelectorAll(pattern), e => [e.getAttribute("class") ?? "", contrast(e)]);
          return {squares: all("#chapters svg .square"), words: all("svg.waiting text")};
        }"""
    )

    assert {name for name, _ in found["squares"]} == {"square violated", "square met", "square not_claimed"}
    assert len(found["words"]) >= 8
    assert [one for one in found["squares"] if one[1] < 3] == []
    assert [one for one in found["words"] if one[1] < 4.5] == []


@pytest.mark.parametrize("look", LOOKS)
def test_the_picture_of_a_hang_shows_its_last_rank(opened, large, look):
    tab = opened(large, **look)
    tab.locator(".violation", has=tab.locator("svg.waiting")).first.locator("summary").first.click()
    picture = tab.locator("svg.waiting").first
    picture.scroll_into_view_if_needed()
    last = box(picture.locator("text", has_text="rank 7"))
    frame = box(tab.locator(".scroll", has=tab.locator("svg.waiting")).first)

    assert last["right"] <= min(frame["right"], look["viewport"]["width"])
    assert last["bottom"] <= frame["bottom"]
    assert tab.locator(".scroll", has=tab.locator("svg.waiting")).first.evaluate(
        "e => e.scrollWidth <= e.clientWidth"
    )


@pytest.mark.parametrize("look", LOOKS)
def test_a_run_that_was_stopped_is_no_red_cross(opened, make, look):
    tab = opened(make.result(make.cell("FWD-1", "GPipe"), complete=False), **look)
    wrong = opened(make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe"))), **look)

    def look(page):
        found = page.locator(".verdict")
        return found.locator(".sign").text_content(), found.evaluate("e => getComputedStyle(e).color")

    assert look(tab)[0] == "◐"
    assert look(wrong)[0] == "✗"
    assert look(tab)[1] != look(wrong)[1]
    assert "stopped early" in tab.locator(".verdict").text_content()


@pytest.mark.parametrize("look", LOOKS)
def test_a_card_says_what_to_do_next_in_sight(opened, make, look):
    violation = make.violation(
        "TRN-15",
        "GPipe",
        status="error",
        signature="raised RuntimeError: input tensor has to be contiguous",
        message="rank 0 raised RuntimeError: has to be contiguous\nrank 0 raised at\n"
        + "\n".join(f"  engine.py, line {k}, in run" for k in range(60)),
    )
    tab = opened(make.result(make.cell("TRN-15", "GPipe", violation)), **look)
    tab.locator("#causes li a").click()
    settled(tab)

    assert in_sight(tab.locator(".next"))
    assert not tab.get_by_text("engine.py, line 59").is_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_a_comparison_begins_with_what_changed(opened, large, make, look):
    newer = make.changed(large.implementation, version="2.0")
    cells = tuple(
        make.changed(cell, violations=(), status="passed") if cell.requirement == "FWD-3" else cell
        for cell in large.cells
    )
    other = make.changed(large, implementation=newer, cells=cells, created="2026-03-04T05:06:07+00:00")
    tab = opened(large, other, **look)
    link = tab.locator(".news li a").first

    assert tab.locator(".news .verdict").text_content().split(" 1")[0].startswith("1 fixed, 0 worse, 0 new")
    assert in_sight(tab.locator(".news .verdict"))
    assert in_sight(tab.locator(".identities").get_by_text("2026-03-04 05:06 UTC"))
    link.click()
    assert reached(tab, link.get_attribute("href")[1:])


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("which", ["one", "stopped", "two"])
def test_axe_finds_nothing(opened, large, make, look, which):
    stopped = make.changed(large, run=make.changed(large.run, complete=False), cells=large.cells[:4])
    results = {"one": [large], "stopped": [stopped], "two": [large, stopped]}[which]
    tab = opened(*results, **look)

    assert tab.evaluate("document.documentElement.scrollWidth") <= look["viewport"]["width"]
    assert axe(tab) == []
