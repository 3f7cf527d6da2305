"""Requirements, judgements, suite tests and faults belong together."""

import pytest
from pipeconform.reference_impl.faults import FAULTS

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.case.focus import Focus
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import requirements
from tests.case.examples import EVERYTHING

IDS = [row.id for row in requirements()]


def test_every_requirement_has_a_judgement_and_every_judgement_a_requirement() -> None:
    assert list(JUDGEMENTS) == IDS


def test_every_requirement_has_a_faulty_implementation_that_breaks_it() -> None:
    assert sorted({fault.requirement for fault in FAULTS.values()}) == sorted(IDS)


def test_nothing_is_judged_that_is_not_claimed() -> None:
    nothing = Capabilities(schedules=(ScheduleClaim(name="GPipe"),))
    (claim,) = nothing.schedules
    judged = {identifier for identifier, j in JUDGEMENTS.items() if j.foci(claim, nothing)}

    core = {"FWD-1", "FWD-7", "FWD-14", "FWD-28", "FWD-29", "TRN-1", "TRN-2", "TRN-3", "TRN-12"}
    core |= {"LIF-3", "LIF-5", "LIF-6", "LIF-8", "FWD-24", "FWD-34"}
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
