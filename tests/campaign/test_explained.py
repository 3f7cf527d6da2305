"""The way from a violation to the requirement that explains it, on answers that a test gives: nothing is executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from pipeconform.campaign.blocking import explained
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec import requirement


@dataclass(frozen=True)
class Named:
    """A case that is nothing but its name."""

    name: str

    @property
    def digest(self) -> str:
        return f"digest of {self.name}"


CASE, PLAIN, PLAINER, ALONE = map(Named, ("case", "plain", "plainer", "alone"))


@dataclass(frozen=True)
class Asked:
    """What a requirement is judged on: controls and earlier requirements as a test says."""

    row: object
    found: Mapping[str, Sequence[tuple[str, Named]]] = field(default_factory=dict)
    explains: Mapping[str, Sequence[str]] = field(default_factory=dict)
    before: Mapping[bool, Sequence[str]] = field(default_factory=dict)
    around: tuple[str, str, Named] | None = None
    plain_too: bool = False
    """Whether the requirement is also about cases without what it adds."""

    def controls(self, case):
        return self.found.get(case.name, ())

    def explaining(self, control):
        return [requirement(name) for name in self.explains.get(control.name, ())]

    def applies(self, case):
        return self.plain_too

    def earlier(self, case, *, controlled):
        return [requirement(name) for name in self.before.get(controlled, ())]

    def surroundings(self, case):
        if self.around is None or case != CASE:
            return None
        name, words, control = self.around
        return requirement(name), words, control

    def instead(self, row):
        return replace(self, row=row, before={}, around=None)


class Ask:
    """Answers by case and requirement, and remembers what was asked."""

    def __init__(self, shown):
        self.shown, self.asked = shown, []

    def __call__(self, case, rows, *, anew=False):
        self.asked.append((case.name, [row.id for row in rows], anew))
        found = {row.id: self.shown.get((case.name, row.id), ()) for row in rows}
        return {name: one(len(self.asked)) if callable(one) else one for name, one in found.items()}


def wrong(kind="gradient value", status=Status.FAILED, message="wrong", **where):
    return Outcome(status, Finding(kind=kind, message=message, **where))


SEEN = wrong()
ASKED = Asked(
    requirement("DPC-6"), found={"case": [("without the delay", PLAIN)]}, explains={"plain": ["TRN-1"]}
)


def followed(asked, shown, outcome=SEEN):
    ask = Ask(shown)
    return explained(asked, CASE, outcome, ask=ask), ask.asked


def test_a_control_that_shows_nothing_lets_the_violation_stand():
    found, executed = followed(ASKED, {})

    assert (found.case, found.outcome) == (CASE, SEEN)
    assert (found.control.words, found.control.digest, found.control.status) == (
        "without the delay",
        "digest of plain",
        "passed",
    )
    assert (found.control.requirement, found.control.case) == ("", None)
    assert executed == [("plain", ["TRN-1"], False)]


def test_a_control_that_shows_it_blocks_it():
    cause = wrong("gradient value", message="stage 1's", rank=1)
    found, _ = followed(ASKED, {("plain", "TRN-1"): (replace(cause, verdicts="rank 0 returned"),)})
    control = found.control

    assert (found.case, found.outcome) == (CASE, SEEN)
    assert (control.requirement, control.status, control.signature) == ("TRN-1", "failed", "gradient value")
    assert (control.words, control.digest, control.case) == ("without the delay", "digest of plain", PLAIN)
    assert (control.message, control.where, control.verdicts) == (
        "stage 1's",
        cause.finding.where(),
        "rank 0 returned",
    )


def test_what_a_control_shows_of_another_fact_explains_nothing():
    found, _ = followed(ASKED, {("plain", "TRN-1"): (wrong("leftover state"), wrong("wording"))})
    assert found.control.status == "passed"


def test_of_several_violations_the_one_that_explains_it_counts():
    found, _ = followed(ASKED, {("plain", "TRN-1"): (wrong("leftover state"), wrong("output value"))})
    assert found.control.signature == "output value"  # wrong outputs give wrong gradients


def test_a_control_that_does_not_end_explains_everything():
    hung = wrong("hang", Status.HUNG)
    assert followed(ASKED, {("plain", "TRN-1"): (hung,)})[0].control.status == "hung"


def test_what_ends_in_the_same_case_does_not_explain_a_wrong_value():
    """In the violation's own case an end is another violation."""
    asked = Asked(requirement("DPC-6"), before={False: ["TRN-1"]})
    found, executed = followed(asked, {("case", "TRN-1"): (wrong("hang", Status.HUNG),)})
    assert found.control is None
    assert executed == [("case", ["DPC-6", "TRN-1"], True)] * 4


def test_a_requirement_that_adds_nothing_and_has_nobody_before_it_executes_nothing():
    found, executed = followed(Asked(requirement("FWD-1")), {})
    assert (found.control, executed) == (None, [])


def test_controls_are_tried_one_after_the_other_and_the_first_that_passed_is_told():
    controls = [("with one replica", PLAINER), ("without the delay", PLAIN)]
    asked = replace(ASKED, found={"case": controls}, explains={"plainer": ["FWD-1"], "plain": ["TRN-1"]})
    found, executed = followed(asked, {})
    assert (found.control.words, len(executed)) == ("with one replica", 2)

    found, _ = followed(asked, {("plain", "TRN-1"): (SEEN,)})
    assert (found.control.words, found.control.requirement) == ("without the delay", "TRN-1")


def test_a_control_that_nobody_judges_is_not_executed():
    found, executed = followed(replace(ASKED, explains={}), {})
    assert (found.control, executed) == (None, [])


def test_the_way_is_followed_to_its_end_in_words():
    """From delayed replicas to replicas, and from replicas to one pipeline."""
    asked = replace(
        ASKED,
        found={"case": [("without the delay", PLAIN)], "plain": [("with one replica", PLAINER)]},
        explains={"plain": ["DPC-1"], "plainer": ["TRN-1"]},
    )
    found, _ = followed(asked, {("plain", "DPC-1"): (SEEN,), ("plainer", "TRN-1"): (SEEN,)})
    control = found.control

    assert (control.requirement, control.words) == ("TRN-1", "without the delay, with one replica")
    assert control.case == PLAINER


def test_the_way_has_an_end_if_controls_lead_on_for_ever():
    asked = replace(ASKED, found={"case": [("again", CASE)]}, explains={"case": ["DPC-1"]})
    found, executed = followed(asked, {("case", "DPC-1"): (SEEN,)})
    assert found.control.words == "again, again, again, again"
    assert found.control.case is None  # the violation's own
    assert len(executed) == 4


def test_a_requirement_that_sees_it_in_its_control_too_is_accused_there():
    """It is also about cases without what it added: the plainer case shows the same."""
    asked = replace(ASKED, explains={}, plain_too=True)
    found, executed = followed(asked, {("plain", "DPC-6"): (SEEN,)})
    assert (found.case, found.outcome, found.control) == (PLAIN, SEEN, None)
    assert executed[0] == ("plain", ["DPC-6"], False)


def test_but_only_of_the_same_kind():
    other = wrong("output value")
    found, _ = followed(replace(ASKED, explains={}, plain_too=True), {("plain", "DPC-6"): (other,)})
    assert (found.case, found.outcome) == (CASE, SEEN)


@pytest.mark.parametrize("controlled", [True, False])
def test_earlier_requirements_are_asked_in_the_same_case(controlled):
    asked = replace(ASKED, before={controlled: ["FWD-1"]}, found=ASKED.found if controlled else {})
    found, executed = followed(
        asked, {("case", "FWD-1"): (wrong("output value"),), ("case", "DPC-6"): (SEEN,)}
    )

    assert (found.control.requirement, found.control.words, found.control.case) == ("FWD-1", "", None)
    assert ("case", ["DPC-6", "FWD-1"], True) in executed


def test_a_case_that_does_not_show_it_is_executed_four_times():
    asked = Asked(requirement("DPC-6"), before={False: ["FWD-1"]})
    assert len(followed(asked, {})[1]) == 4
    assert len(followed(asked, {("case", "DPC-6"): (SEEN,)})[1]) == 1
    assert len(followed(asked, {("case", "DPC-6"): lambda n: (SEEN,) if n == 3 else ()})[1]) == 3
    assert len(followed(asked, {("case", "DPC-6"): (wrong("leftover state"),)})[1]) == 4


# ------------------------------------------------------------------ what is around a subject

AROUND = Asked(
    requirement("TRN-1"), around=("COM-2", "without bystanders", ALONE), explains={"alone": ["FWD-1"]}
)


def test_what_only_the_surroundings_show_is_their_business():
    found, executed = followed(AROUND, {("case", "COM-2"): (wrong("hang", Status.HUNG), SEEN)})

    assert (found.control.requirement, found.control.words) == ("COM-2", "")
    assert executed == [
        ("alone", ["FWD-1"], False),
        ("alone", ["FWD-1"], True),
        ("case", ["COM-2"], True),
    ]


@pytest.mark.parametrize("on", [1, 2])
def test_what_shows_without_them_is_not(on):
    """A violation by chance may come in the second execution only."""
    found, executed = followed(AROUND, {("alone", "FWD-1"): lambda n: (SEEN,) if n == on else ()})
    assert found.control is None
    assert len(executed) == on


def test_the_requirement_about_them_is_accused_with_that_control():
    found, executed = followed(replace(AROUND, row=requirement("COM-2")), {})
    assert (found.control.words, found.control.digest) == ("without bystanders", "digest of alone")
    assert (found.control.requirement, found.control.status) == ("", "passed")
    assert [anew for _, _, anew in executed] == [False, True]


def test_nothing_is_executed_where_nobody_judges_the_case_without_them():
    found, executed = followed(replace(AROUND, explains={}), {})
    assert (found.case, found.outcome, found.control, executed) == (CASE, SEEN, None, [])


def test_the_requirement_itself_is_asked_without_them_where_it_applies():
    asked = replace(AROUND, plain_too=True, explains={"alone": ["TRN-1", "FWD-1"]})
    _, executed = followed(asked, {})
    assert executed[0] == ("alone", ["TRN-1", "FWD-1"], False)  # each of them once
