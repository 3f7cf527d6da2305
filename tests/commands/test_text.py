"""What list, show and init print, and how doctor words its checks."""

import ast

import pytest

from pipeconform.adapter import Capabilities, Description, Feature, MicrobatchRule, Placement, ScheduleClaim
from pipeconform.commands.checks import Check
from pipeconform.commands.doctor import report
from pipeconform.commands.init import skeleton
from pipeconform.commands.list import list_requirements, list_schedules
from pipeconform.commands.options import names
from pipeconform.commands.show import describe_requirement
from pipeconform.spec import Chapter, Level, Requirement
from pipeconform.spec.catalogue import Promise

ROW = Requirement(
    id="XYZ-1",
    title="Outputs",
    level=Level.MUST,
    statement="Every output equals the reference's, whatever " + "it is " * 12 + "made of.",
    rationale="Anything else would be another model.",
    promise=(Promise("a paper"),),
)


def test_requirements_are_listed_by_chapter():
    chapter = Chapter(id="XYZ", title="Values", requirements=(ROW,))

    assert list_requirements([chapter], version="0.9") == (
        "XYZ  Values\n  XYZ-1  MUST  Outputs\n\n1 requirement, standard 0.9; 'pipeconform show ID' prints one in full\n"
        "'pipeconform list --levels' and 'list --profiles' list those, 'pipeconform claims REF' features to claim"
    )


def test_a_last_column_says_what_would_be_judged():
    chapter = Chapter(id="XYZ", title="Values", requirements=(ROW,))

    assert "  XYZ-1  MUST  Outputs  not claimed\n" in list_requirements(
        [chapter], version="0.9", judged=lambda row: "not claimed"
    )


def test_claimed_schedules_are_listed_with_their_limits():
    description = Description(
        name="mine",
        version="1.0",
        capabilities=Capabilities(
            schedules=(
                ScheduleClaim(name="GPipe"),
                ScheduleClaim(
                    name="DualPipe",
                    placement=Placement.MIRROR,
                    stages_per_rank=(1, 2),
                    min_ranks=2,
                    ranks_even=True,
                    min_microbatches_per_rank=2,
                    microbatches=MicrobatchRule.EVEN,
                    split_backward=True,
                    evaluates=False,
                ),
            ),
            features=frozenset({Feature.OUTPUTS, Feature.EVAL}),
        ),
    )

    assert list_schedules(description).splitlines() == [
        "mine 1.0",
        "",
        "schedule  ranks p       stages per rank v  microbatches m      placement  notes",
        "GPipe     1 to 8        1                  any                 loop",
        "DualPipe  2 to 8, even  1, 2               at least 2·p, even  mirror     "
        "does not evaluate, splits the backward",
        "",
        "features  eval, outputs",
        "boundary  1 tensor, 2 to 3 dimensions, float32",
    ]


def test_a_requirement_is_shown_with_its_sentence_wrapped():
    shown = describe_requirement(ROW, None, width=60).splitlines()

    assert shown[0] == "XYZ-1  Outputs  (MUST)"
    assert shown[2].startswith("  Every output equals")
    assert max(map(len, shown)) <= 60


def test_a_refusal_that_meets_a_requirement_is_mentioned():
    tolerant = Requirement(
        **{name: getattr(ROW, name) for name in ROW.__struct_fields__} | {"tolerates_errors": True}
    )

    assert "An error on every rank that takes part also meets it." in describe_requirement(tolerant, None)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, ()), ("", ()), ("A,B", ("A", "B")), (" A, B ,", ("A", "B"))]
)
def test_names_are_separated_by_commas(text, expected):
    assert names(text) == expected


def test_the_skeleton_is_python_that_names_its_own_file():
    text = skeleton(name="mine.py")

    assert {"MyAdapter", "MyPipeline"} <= {
        n.name for n in ast.parse(text).body if isinstance(n, ast.ClassDef)
    }
    assert "--impl mine.py:MyAdapter" in text


def test_a_check_is_a_line_and_its_remedy_another():
    assert report(Check(name="cores", state="ok", text="4")) == "ok    cores             4"
    assert report(Check(name="cores", state="warn", text="1", remedy="wait")).splitlines() == [
        "warn  cores             1",
        "                        -> wait",
    ]
