"""The page in Chromium: filters, links, copying, without JavaScript, in print, for those who cannot see it.

Nothing here looks at a clock: that large pages stay smooth is told by how often the browser lays them out.
"""

from __future__ import annotations

import pytest

from pipeconform.campaign.status import status_of
from pipeconform.case import blocks
from pipeconform.case.case import Stage
from pipeconform.report.result import Implementation
from tests.report.html.chromium import IN_CHROMIUM, LOOKS, axe, settled

pytestmark = IN_CHROMIUM

CLAIMED = Implementation(
    reference="toy",
    name="toy GPipe",
    version="1.0",
    capabilities={
        "schedules": [
            {"name": "GPipe", "placement": "loop", "family": "gpipe"},
            {"name": "ZBVZeroBubble", "placement": "v", "family": "zb_v"},
        ]
    },
)


@pytest.fixture
def result(make):
    """Every status, several chapters, levels and schedules, a V placement, a timeline, a hang."""
    case = make.case(p=2, m=3)
    stages = (Stage(blocks=(blocks.Linear(), blocks.Norm())),) * 3 + (
        Stage(blocks=(blocks.Mlp(),), frozen=True),
    )
    v_shaped = make.changed(
        case,
        schedule="ZBVZeroBubble",
        stages_per_rank=2,
        model=make.changed(case.model, stages=stages),
    )
    wrong_value = make.violation(
        "TRN-1",
        "ZBVZeroBubble",
        v_shaped,
        signature="gradient value",
        where="step 0, rank 1, stage 1, microbatch 2",
        message="the gradient is wrong\nvalue differs at [0]\n  expected  0.25\n  actual    0.26\n  distance  7 ulp",
        verdicts="rank 0  returned\nrank 1  returned",
    )
    wrong_order = make.violation(
        "SCH-2",
        "GPipe",
        signature="not the named order",
        timeline=(("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1")),
        first_wrong=(1, 1),
        confirmed=False,
    )
    hang = make.violation(
        "FWD-1",
        "GPipe",
        status="hung",
        signature="hang",
        where="rank 0",
        message="no rank makes progress\nCurrent thread 0x1 (most recent call first):\n  File 'a.py'",
        verdicts="rank 0  stuck     no CPU time  <- first failure\nrank 1  returned",
    )
    cells = (
        make.cell("FWD-1", "GPipe", hang),
        make.cell("FWD-1", "ZBVZeroBubble"),
        make.cell("FWD-2", "GPipe"),
        make.cell("FWD-2", "ZBVZeroBubble", status="not_claimed", reason="it is not claimed"),
        make.cell("TRN-1", "GPipe"),
        make.cell("TRN-1", "ZBVZeroBubble", wrong_value),
        make.cell("SCH-2", "GPipe", wrong_order, status="flaky"),
        make.cell("SCH-2", "ZBVZeroBubble", status="error", reason="it could not be judged"),
        make.cell("LIF-5", "GPipe", status="crashed", reason="gone"),
        make.cell("LIF-5", "ZBVZeroBubble", status="skipped"),
    )
    return make.changed(make.result(*cells), implementation=CLAIMED)


def rows(tab):
    """The requirements that the matrix shows."""
    return tab.eval_on_selector_all(
        ".matrix [data-row]",
        "all => all.filter(e => e.checkVisibility()).map(e => e.querySelector('a').textContent)",
    )


def violations(tab):
    return tab.eval_on_selector_all(
        "[data-group]",
        "all => all.filter(e => e.checkVisibility()).map(e => e.querySelector('b').textContent)",
    )


def test_every_filter_narrows_matrix_and_violations_and_clearing_brings_all_back(opened, result):
    tab = opened(result)
    everything = rows(tab), violations(tab)

    def narrowed(act):
        act()
        settled(tab)
        found = rows(tab), violations(tab)
        tab.get_by_role("button", name="Clear").click()
        settled(tab)
        assert (rows(tab), violations(tab)) == everything
        return found

    assert len(everything[0]) == 5
    assert narrowed(lambda: tab.locator("#chapter").select_option("TRN")) == (
        ["TRN-1"],
        ["TRN-1 Gradients"],
    )
    assert narrowed(lambda: tab.get_by_label("HUNG").check()) == (["FWD-1"], ["FWD-1 Outputs"])
    assert narrowed(lambda: tab.get_by_label("Search").fill("gradient VALUE"))[0] == ["TRN-1"]
    assert narrowed(lambda: tab.get_by_label("Search").fill("no such thing")) == ([], [])
    assert narrowed(lambda: tab.locator("#schedule").select_option("GPipe"))[1] == [
        name for name in everything[1] if not name.startswith("TRN")
    ]


def test_filters_hold_together_and_a_status_counts_only_under_the_chosen_schedule(opened, result):
    tab = opened(result)
    tab.get_by_label("HUNG").check()
    tab.locator("#schedule").select_option("ZBVZeroBubble")
    settled(tab)

    assert rows(tab) == []
    assert tab.get_by_text("No requirement matches these filters.").is_visible()

    tab.get_by_label("FAIL").check()
    settled(tab)

    assert rows(tab) == ["TRN-1"]
    assert tab.locator("#shown").text_content().startswith("1 of 5 requirements")


def test_a_chosen_schedule_is_the_only_column(opened, result):
    tab = opened(result)
    tab.locator("#schedule").select_option("ZBVZeroBubble")
    settled(tab)

    shown = tab.eval_on_selector_all(
        ".scroll .matrix thead th", "all => all.filter(e => e.checkVisibility()).map(e => e.textContent)"
    )
    assert shown == ["Requirement", "ZBVZeroBubble"]


def test_a_failing_cell_leads_to_its_violation_opened(opened, result):
    tab = opened(result)
    link = tab.locator(".matrix a.flaky")
    article = tab.locator(f"[id='{link.get_attribute('href')[1:]}']")

    assert not article.is_visible()
    link.click()
    article.wait_for(state="visible")
    assert article.get_by_text("✗ here").first.is_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_a_cell_and_the_card_that_it_leads_to_have_one_status(opened, make, look):
    """Also a cell with several violations, or with expected or flaky ones: what it leads to shows its own status."""
    pairs = {
        "GPipe": ("failed", "hung"),
        "1F1B": ("hung", "crashed"),
        "LoopedBFS": ("crashed", "error"),
        "ZBVZeroBubble": ("error", "failed"),
        "DualPipeV": ("error", "error"),
    }
    cells = []
    for name, turned in (("TRN-1", False), ("FWD-1", True)):
        for schedule, pair in pairs.items():
            violations = tuple(
                make.violation(
                    name,
                    schedule,
                    id=f"{name}:{schedule}:default:{k}",
                    status=status,
                    signature=f"{name} {status}",
                    message=f"here it {status}",
                )
                for k, status in enumerate(pair[::-1] if turned else pair)
            )
            cells.append(make.cell(name, schedule, *violations, status=status_of(violations, compared=1)))
    expected = make.violation("FWD-2", "GPipe", expected="known.toml:1")
    flaky = make.violation("FWD-2", "1F1B", confirmed=False)
    cells += [make.cell("FWD-2", "GPipe", expected), make.cell("FWD-2", "1F1B", flaky, status="flaky")]
    tab = opened(make.result(*cells), **look)
    statuses = {
        (cell.requirement, cell.schedule): cell.status for cell in cells if cell.requirement != "FWD-2"
    }
    words = set()
    for link in tab.locator(".scroll .matrix td a.status").all():
        word, identifier = link.text_content(), link.get_attribute("href")[1:]
        tab.evaluate("id => { location.hash = id }", identifier)
        settled(tab)
        card = tab.locator(f"[id='{identifier}']").evaluate_handle(
            "e => e.closest('.other') ?? e.closest('.violation')"
        )
        shown = card.evaluate(
            "e => Array.from(e.querySelectorAll(':scope > summary .status'), s => s.textContent)"
        )
        name, schedule = identifier.removeprefix("v-").rsplit("-", 3)[:2]

        assert word in shown, identifier
        if name != "FWD-2":
            assert f"here it {statuses[name, schedule]}" in card.evaluate("e => e.textContent")
        words.add(word)

    assert words == {"✗ FAIL", "∞ HUNG", "↯ CRASH", "! ERR", "~ FLAKY", "(✗) known"}


def test_a_link_into_the_page_opens_what_it_leads_to_even_behind_a_filter(opened, result):
    tab = opened(result, fragment="#v-TRN-1-ZBVZeroBubble-default-1f3a")

    assert tab.locator("[id='v-TRN-1-ZBVZeroBubble-default-1f3a']").is_visible()

    tab.locator("#chapter").select_option("LIF")
    settled(tab)
    tab.evaluate("location.hash = '#v-FWD-1-GPipe-default-1f3a'")
    tab.locator("[id='v-FWD-1-GPipe-default-1f3a']").wait_for(state="visible")


def test_the_replay_line_is_copied(opened, result):
    tab = opened(result, permissions=["clipboard-read", "clipboard-write"])
    tab.locator(".violation > summary").first.click()
    shown = tab.locator(".violation[open] .replay").first
    shown.get_by_role("button", name="Copy").click()
    tab.get_by_text("Copied the command").wait_for(state="attached")

    assert tab.evaluate("navigator.clipboard.readText()") == shown.locator("code").text_content()


def test_without_a_clipboard_the_line_is_copied_from_the_selection(opened, result):
    tab = opened(result)
    tab.locator(".violation > summary").first.click()
    tab.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')) }")
    shown = tab.locator(".violation[open] .replay").first
    shown.get_by_role("button", name="Copy").click()
    tab.locator("#said").filter(has_text="the command").wait_for(state="attached")

    assert tab.evaluate("getSelection().toString()") == shown.locator("code").text_content()


def test_without_javascript_everything_reads(opened, result):
    tab = opened(result, java_script_enabled=False)

    assert not tab.locator("#filters").is_visible()
    assert not tab.get_by_role("button", name="Copy").first.is_visible()
    assert tab.locator(".matrix tbody tr").last.is_visible()
    tab.locator(".violation > summary").nth(1).click()
    assert tab.locator(".violation").nth(1).locator("article").is_visible()
    tab.locator(".matrix a.failed").click()
    tab.locator("[id='v-TRN-1-ZBVZeroBubble-default-1f3a']").wait_for(state="visible")


def test_on_paper_all_is_unfolded_and_nothing_is_left_to_press(opened, result):
    tab = opened(result, media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert tab.locator("article").count() == 3
    assert all(article.is_visible() for article in tab.locator("article").all())
    assert not tab.locator("#filters").is_visible()
    assert not tab.get_by_role("button", name="Copy").first.is_visible()

    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.locator("details[open]").count() == 1


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_is_never_wider_than_its_window(opened, result, width):
    tab = opened(result, result, viewport={"width": width, "height": 800})
    tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")

    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("results", [1, 2])
def test_axe_finds_nothing(opened, result, make, scheme, results):
    other = make.changed(result, cells=result.cells[:4], standard_version="9")
    tab = opened(*(result, other)[:results], color_scheme=scheme)
    assert axe(tab) == []


def test_pictures_fit_the_words_in_them(opened, result):
    tab = opened(result)
    tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    too_wide = tab.evaluate("""() => Array.from(document.querySelectorAll("svg.case .block-words, svg .names text"))
        .filter(text => text.getBBox().width > 120).map(text => text.textContent)""")
    outside = tab.evaluate("""() => Array.from(document.querySelectorAll("main svg")).flatMap(svg =>
        Array.from(svg.querySelectorAll("text")).filter(text => {
          const a = text.getBoundingClientRect(), b = svg.getBoundingClientRect();
          return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
        }).map(text => text.textContent))""")

    assert (too_wide, outside) == ([], [])


def test_a_filter_lays_five_thousand_rows_out_once(opened, make):
    large = make.result(
        *(make.cell(f"NEW-{k}", schedule) for k in range(1, 5001) for schedule in ("GPipe", "1F1B"))
    )
    tab = opened(large)
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")

    def layouts():
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return metrics["LayoutCount"]

    tab.evaluate("""() => {
      window.changes = 0;
      new MutationObserver(all => (window.changes += all.length)).observe(
        document.getElementById("main"), {subtree: true, attributes: true});
    }""")
    laid_out = tab.evaluate("""() => Array.from(document.querySelectorAll(".matrix [data-row] td"))
        .filter(cell => cell.checkVisibility({contentVisibilityAuto: true})).length""")
    before = layouts()
    tab.evaluate("""() => {
      const find = document.getElementById("find");
      for (const text of ["n", "ne", "new", "new-", "new-4", "new-49", "new-499"]) {
        find.value = text;
        find.dispatchEvent(new Event("input", {bubbles: true}));
      }
    }""")
    tab.locator("#shown").filter(has_text="11 of 5000").wait_for()
    settled(tab)

    assert laid_out < 500  # of 10,000 cells
    # 4,989 rows and as many folded counts are hidden, one change each, however many letters were typed.
    assert rows(tab) == ["NEW-499", *(f"NEW-{k}" for k in range(4990, 5000))]
    assert tab.evaluate("window.changes") == 2 * 4989
    assert layouts() - before <= 3


def test_a_picture_may_be_wide_and_then_scrolls_by_keyboard(opened, make, result):
    case = make.case(p=8, m=8)
    wide = make.violation("TRN-1", "GPipe", case, where="step 0, rank 7, stage 7")
    tab = opened(
        make.changed(result, cells=(make.cell("TRN-1", "GPipe", wide),)),
        viewport={"width": 600, "height": 800},
    )
    region = tab.get_by_role("group", name="Picture of the case")
    region.focus()
    tab.keyboard.press("ArrowRight")
    region.evaluate("e => new Promise(done => (e.scrollLeft > 0 ? done() : (e.onscroll = done)))")

    assert region.evaluate("e => e.scrollLeft") > 0
