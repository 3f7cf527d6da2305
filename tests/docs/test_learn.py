"""docs/learn states what is computed, quotes what was printed, and draws what the schedules are."""

import re

import pytest

from pipeconform.schedule import generate, simulate
from pipeconform.spec.wrappers import all_chapters, all_requirements
from tests.docs import learning
from tests.docs.learning import CASES, DEFECTS, LEARN, LESSONS
from tests.docs.pages import blocks
from tests.docs.reference import anchor_of

FINDINGS = LEARN.parent / "findings"
ONE, GPIPE, F1B, INTERLEAVED, BFS, H1, H2, ZBV, HALF, MIN, DPV = LESSONS
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]\d+)?)")


def words(page):
    """A page's text without generated parts, in one line."""
    text = re.sub(
        r"<!-- [\w-]+: written.*?<!-- end -->", "", (LEARN / page).read_text("utf-8"), flags=re.DOTALL
    )
    return " ".join(text.split())


def sections(page):
    return dict(
        re.findall(
            r"^## (.+?)\n(.*?)(?=^## |\Z)", (LEARN / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
    )


def test_every_picture_is_what_is_drawn():
    assert {path.name: path.read_text("utf-8") for path in LEARN.glob("pictures/*")} == learning.pictures()


def test_pictures_of_schedules_have_the_same_scale():
    sizes = {
        lesson.step: int(re.search(r'width="(\d+)"', learning.pictures()[f"{lesson.name}.svg"])[1])
        for lesson in (GPIPE, INTERLEAVED, H1, ZBV)
    }

    assert sizes[33.0] - sizes[27.0] == pytest.approx(21 * 6, abs=1)
    assert sizes[28.5] - sizes[25.5] == pytest.approx(21 * 3, abs=1)


@pytest.mark.parametrize("page", ["schedules.md", "defects.md"])
def test_captions_tables_and_cases_are_written_anew_as_they_stand(page):
    text = (LEARN / page).read_text("utf-8")

    assert learning.rewritten(text) == text


def test_everything_that_is_generated_is_shown():
    shown = re.findall(
        r"<!-- ([\w-]+): written", "".join(page.read_text("utf-8") for page in LEARN.glob("*.md"))
    )

    assert sorted(shown) == sorted(learning.generated())


def test_every_lesson_is_the_same_work():
    assert {lesson.simulation.busy.tolist()[0] for lesson in LESSONS} == {24.0}
    assert all(len(set(lesson.simulation.busy.tolist())) == 1 for lesson in LESSONS)
    assert all(len(set(lesson.simulation.makespan_bubble.tolist())) == 1 for lesson in LESSONS)


SAID = {
    "Every rank therefore computes for 24 units": ONE.simulation.busy[0] == 24,
    "At any time one rank computes and three wait.": ONE.idle == 3 * (ONE.step - ONE.idle),
    "Four devices are as fast as one": ONE.step == 4 * 24,
    "With m = 800 GPipe would hold 800 microbatches per rank, and 1F1B 4 on the first rank.": [
        simulate(generate(name, num_ranks=4, num_microbatches=800)).peak_in_flight_weight[0]
        for name in ("gpipe", "one_f_one_b")
    ]
    == [800, 4],
    f"{9 / 24:.1%} of the useful time, and are {9 / 33:.0%} of the step".replace("%", " %"): GPIPE.idle == 9,
    "The step takes as long as GPipe's.": F1B.step == GPIPE.step,
    "that is 1/v of 1F1B's": INTERLEAVED.idle == F1B.idle / 2,
    "The bubble is that of interleaved 1F1B; the memory is GPipe's.": (BFS.idle, BFS.held)
    == (INTERLEAVED.idle, GPIPE.held),
    "ZB-H1 has the memory of 1F1B's first rank, now on every rank": set(H1.held) == {F1B.held[0]},
    "with equal times a third": F1B.idle == 3 * H1.idle,
    "In ZB-H2 no rank idles between its first and its last computation.": not H2.simulation.span_bubble.any(),
    "What remains, 3 units here": H2.idle == 3,
    "That is 2p − 1 microbatches": set(H2.held) == {2 * 4 - 1},
    "each rank holds as much as 1F1B's first one": set(ZBV.held) == {F1B.held[0]},
    "with 4 microbatches held instead of 7": (ZBV.held[0], H2.held[0]) == (4, 7)
    and not ZBV.simulation.span_bubble.any(),
    "They hold about a half and a third of what ZB-V holds, and idle longer": 0.5
    <= max(HALF.held) / 4
    <= 0.75
    and 0.33 <= max(MIN.held) / 4 <= 0.5
    and min(HALF.idle, MIN.idle) > ZBV.idle,
    "ZB-V idles less": ZBV.idle < DPV.idle,
}


@pytest.mark.parametrize("said", SAID)
def test_the_page_says_it_and_it_is_so(said):
    assert said in words("schedules.md")
    assert SAID[said]


@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize("m", [1, 4, 9])
def test_the_shares_of_idle_time_are_the_formulas(p, m):
    text = words("schedules.md")
    step = simulate(generate("gpipe", num_ranks=p, num_microbatches=m))
    idle = step.makespan_bubble.max()

    assert "the idle share is (p − 1)/(m + p − 1)" in text
    assert idle / step.makespan == pytest.approx((p - 1) / (m + p - 1))
    assert "with one microbatch the idle share is (p − 1)/p" in text
    assert "by the useful time instead of by the whole step: (p − 1)/m" in text
    assert idle / step.busy.max() == pytest.approx((p - 1) / m)


@pytest.mark.parametrize("p", [2, 5])
@pytest.mark.parametrize("m", [1, 3, 12])
def test_what_1f1b_holds_is_the_formula(p, m):
    step = simulate(generate("one_f_one_b", num_ranks=p, num_microbatches=m))

    assert "rank r holds min(m, p − r) of them" in words("schedules.md")
    assert step.peak_in_flight_weight.tolist() == [min(m, p - rank) for rank in range(p)]


def test_every_chapter_has_a_defect_a_requirement_and_a_case():
    found = sections("defects.md")
    titles = {row.id: row.title for row in all_requirements()}
    of_chapter = {requirement.partition("-")[0]: requirement for requirement in DEFECTS}
    headings = {chapter.id: f"{chapter.id}: {chapter.title}" for chapter in all_chapters()}

    assert {name for name in found if name[:3].isupper()} == {*headings.values()}
    assert {*headings} == set(of_chapter)
    for chapter, requirement in of_chapter.items():
        text = found[headings[chapter]]
        (script,) = re.findall(r"\[script\]\(\.\./findings/([^)]+)\)", " ".join(text.split()))
        anchor = anchor_of(f"{requirement} {titles[requirement]}")
        assert (FINDINGS / script).exists()
        assert f"[{requirement}](../standard.md#{anchor})" in " ".join(text.split())
        assert f"<!-- {requirement.lower()}: written" in text


def test_what_engines_printed_is_quoted_from_the_findings():
    for text in sections("defects.md").values():
        script = re.search(r"\.\./findings/([^)]+)\.py\)", text)
        quoted = re.sub(r"<!-- [\w-]+: written.*?<!-- end -->", "", text, flags=re.DOTALL)
        for fence in re.findall(r"^```text\n(.*?)^```", quoted, re.DOTALL | re.MULTILINE):
            printed = (FINDINGS / f"{script[1]}.txt").read_text("utf-8").splitlines()
            assert [line for line in fence.splitlines() if line not in printed] == []


def test_the_numbers_of_dualpipe_v_are_those_of_the_finding():
    printed = (FINDINGS / "torch-2.13-frozen-first-stage.txt").read_text("utf-8")

    assert "DualPipeV gives 0.0362 instead of 0.0401" in words("schedules.md")
    assert "DualPipeV: norm of stage 1's gradient: expected 0.0401, actual 0.0362" in printed


def test_thirteen_findings_need_a_split_backward():
    rows = re.findall(
        r"^\| \w+ \| ([^|]*) \| ([^|]*) \|", (FINDINGS / "README.md").read_text("utf-8"), re.MULTILINE
    )

    assert "Thirteen findings in torch have a split backward as their condition" in words("defects.md")
    assert sum(where.startswith("split backward") for _, where in rows) == 13


@pytest.mark.parametrize("requirement", DEFECTS)
def test_a_case_ends_normally_and_shows_a_violation(requirement):
    printed = (CASES / f"{requirement.lower()}.txt").read_text("utf-8")

    assert f"\nVIOLATED:\n{requirement} failed: " in printed


@pytest.mark.parametrize("requirement", ["TRN-4", "SPL-1", "DPC-1"])
def test_the_loss_is_exact_where_the_page_says_so(requirement):
    printed = (CASES / f"{requirement.lower()}.txt").read_text("utf-8")

    assert "In TRN, SPL, LIF, DPC and DPW every loss that the step reports is exact." in words("defects.md")
    assert re.search(r"^  loss        stage \d: =+$", printed, re.MULTILINE)


def test_a_block_of_the_pages_is_no_console():
    """What is shown as executed is generated; test_commands looks for blocks that nothing runs."""
    pages = [block.language for page in LEARN.glob("*.md") for block in blocks(page)]

    assert set(pages) == {"text"}


@pytest.mark.slow
@pytest.mark.parametrize("requirement", DEFECTS)
def test_a_case_shows_what_is_stored(requirement):
    """But for the digits of values: other processors may add in another order."""
    stored = (CASES / f"{requirement.lower()}.txt").read_text("utf-8")

    assert NUMBER.sub("N", learning.replay(requirement)) == NUMBER.sub("N", stored)
