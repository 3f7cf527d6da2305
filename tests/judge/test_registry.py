"""Requirements, judgements, suite tests and faults belong together."""

import re
from importlib import resources

import pytest
from pipeconform.reference_impl.faults import FAULTS

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.case.focus import Focus
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import chapters, requirements
from tests.case.examples import EVERYTHING

IDS = [row.id for row in requirements()]


def _in_the_suites() -> list[str]:
    folder = resources.files("pipeconform.suites")
    texts = [
        path.read_text()
        for chapter in folder.iterdir()
        if chapter.is_dir()
        for path in chapter.iterdir()
        if path.name.startswith("test_")
    ]
    return [
        found for text in texts for found in re.findall(r'pipeconform_requirement\("([A-Z]+-\d+)"\)', text)
    ]


def test_every_requirement_has_one_test_and_every_test_a_requirement() -> None:
    assert sorted(_in_the_suites()) == sorted(IDS)


def test_every_requirement_has_a_judgement_and_every_judgement_a_requirement() -> None:
    assert sorted(JUDGEMENTS) == sorted(IDS)


def test_every_requirement_has_a_faulty_implementation_that_breaks_it() -> None:
    assert sorted({fault.requirement for fault in FAULTS.values()}) == sorted(IDS)


def test_the_catalogue_is_in_order_and_says_everything() -> None:
    for chapter in chapters():
        numbers = [int(row.id.partition("-")[2]) for row in chapter.requirements]
        assert numbers == sorted(set(numbers))
        for row in chapter.requirements:
            assert row.statement.endswith(".")
            assert row.rationale.endswith(".")
            assert row.source


def test_nothing_is_judged_that_is_not_claimed() -> None:
    nothing = Capabilities(schedules=(ScheduleClaim(name="GPipe"),))
    (claim,) = nothing.schedules
    judged = {identifier for identifier, j in JUDGEMENTS.items() if j.foci(claim, nothing)}

    core = {"FWD-1", "FWD-7", "FWD-14", "TRN-1", "TRN-2", "TRN-3", "TRN-12"}
    core |= {"LIF-3", "LIF-5", "LIF-6", "LIF-8"}
    assert judged - core <= {
        identifier for identifier in judged if identifier.startswith(("SCH", "ERR", "COM"))
    }
    assert core <= judged


@pytest.mark.parametrize("identifier", IDS)
def test_everything_is_judged_where_everything_is_claimed(identifier) -> None:
    assert any(JUDGEMENTS[identifier].foci(claim, EVERYTHING) for claim in EVERYTHING.schedules)


def test_split_backward_is_a_matter_of_schedules_that_split() -> None:
    judged = [claim.name for claim in EVERYTHING.schedules if JUDGEMENTS["SPL-1"].foci(claim, EVERYTHING)]

    assert judged == ["V"]
    assert Feature.OUTPUTS in JUDGEMENTS["FWD-2"].needs
    assert Focus.UNEVEN in JUDGEMENTS["FWD-2"].about
