"""A comparison as annotations: what got worse at its line, as a run says it, and nothing that GitHub would not show."""

import pytest

from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_github import annotated
from pipeconform.report.causes import causes_of
from pipeconform.report.causes.known import Known
from pipeconform.report.origin import Origins

KNOWN = Known(
    id="7",
    title="outputs are lost",
    link="https://example.org/7",
    requirements=("FWD-1", "FWD-2"),
    signature="^output",
    file="k.toml",
)


@pytest.fixture
def origins(tmp_path):
    (tmp_path / "mine.py").write_text("\nclass Mine: ...\n")
    return Origins(f"{tmp_path}/mine.py:Mine", root=tmp_path)


def told(old, new, origins, *, known=()):
    comparison = compare(old, new, known=known)
    return list(annotated(comparison, causes=causes_of(new, known=known), origins=origins))


def test_a_regression_is_annotated_as_a_run_annotates_it(make, origins):
    old = make.result(make.cell("FWD-1", "GPipe"), make.cell("FWD-1", "1F1B"))
    wrong = [make.cell("FWD-1", one, make.violation("FWD-1", one)) for one in ("GPipe", "1F1B")]
    line, verdict = told(old, make.result(*wrong), origins, known=[KNOWN])

    assert line.split("%0A") == [
        "::error file=mine.py,line=2,title=FWD-1 Outputs%3A output value::"
        "regressed: FWD-1 under GPipe, 1F1B: passed → failed, silently wrong",
        "the output of microbatch 0 is not the reference's",
        "known as finding 7: outputs are lost (https://example.org/7)",
        "pipeconform replay FWD-1:GPipe:default:1f3a --impl torch",
    ]
    assert verdict.startswith("::error title=pipeconform::blocked: causes: 0 fixed, 0 worse, 1 new; 2 cells")


def test_requirements_that_one_cause_violates_are_one_annotation(make, origins):
    names = ("FWD-1", "FWD-2")
    old = make.result(*(make.cell(name, "GPipe") for name in names))
    new = make.result(*(make.cell(name, "GPipe", make.violation(name, "GPipe")) for name in names))
    line, _ = told(old, new, origins, known=[KNOWN])

    assert "%0Aregressed with it: FWD-2 Order and length of the merged output%0A" in line


def test_what_another_requirement_shows_better_is_told_with_that_cause(make, origins):
    """FWD-2 got worse; that FWD-1 violates the same is no change."""
    both = [make.cell(name, "GPipe", make.violation(name, "GPipe")) for name in ("FWD-1", "FWD-2")]
    old = make.result(both[0], make.cell("FWD-2", "GPipe"))
    line, _ = told(old, make.result(*both), origins, known=[KNOWN])
    head, *lines = line.split("%0A")

    assert "title=FWD-2 Order and length of the merged output%3A " in head
    assert lines == [
        "the output of microbatch 0 is not the reference's",
        "cause: FWD-1 Outputs: output value",
        "pipeconform replay FWD-2:GPipe:default:1f3a --impl torch",
    ]


def test_without_the_new_result_there_is_no_line_but_all_else(make):
    old = make.result(make.cell("FWD-1", "GPipe"))
    new = make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe", message="is 50% off")))
    line, _ = annotated(compare(old, new))

    assert line == (
        "::error title=FWD-1 Outputs%3A failed%3A output value::regressed: FWD-1 under GPipe: passed → failed"
        "%0Ais 50%25 off%0Apipeconform replay FWD-1:GPipe:default:1f3a --impl torch"
    )


def test_no_more_are_printed_than_github_shows(make, origins):
    names = [f"FWD-{n}" for n in range(1, 14)]
    old = make.result(*(make.cell(name, "GPipe") for name in names))
    new = make.result(
        *(make.cell(one, "GPipe", make.violation(one, "GPipe", signature=f"wrong {one}")) for one in names)
    )
    lines = told(old, new, origins)

    assert [line.split(" ")[0] for line in lines] == ["::error"] * 10 + ["::warning", "::error"]
    assert lines[10].endswith("::and 3 more; the job's summary lists all")


def test_what_is_fixed_is_a_notice(make, origins):
    old = make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")))
    lines = told(old, make.result(make.cell("FWD-1", "GPipe")), origins)

    assert [line.split(" ")[0] for line in lines] == ["::notice", "::notice"]
