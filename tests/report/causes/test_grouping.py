"""Violations with one cause are one cause, and violations with two are two."""

import itertools

import pytest

from pipeconform.observe.localisation import Deviation, Localisation
from pipeconform.ranks.waiting import Place
from pipeconform.report.causes import Known, causes_of, grouped
from pipeconform.report.result import Control

ROOT = "rank 0  raised    RuntimeError: broken  <- first failure"


def chain(function, *, line=7):
    frame = f"  engine/stage.py, line {line}, in {function}\n    go()"
    return f"rank 0 raised RuntimeError: broken\n{ROOT}\nrank 0 raised at\n{frame}"


def raised(function, **others):
    return {
        "status": "error",
        "signature": "raised RuntimeError: broken",
        "message": chain(function, **others),
        "verdicts": ROOT,
    }


def where_it_begins(likeness, *, direction="weight gradient"):
    first = Deviation(direction=direction, step=0, stage=0, tensor="w", text="", likeness=likeness)
    return Localisation(first=first, compared=4, wrong=1)


@pytest.fixture
def of(make):
    """The causes of cells with one violation each: requirement, schedule and the violation's fields."""

    def causes(*rows, known=()):
        cells = [
            make.cell(name, schedule, make.violation(name, schedule, **fields))
            for name, schedule, fields in rows
        ]
        return grouped(cells, known=known)

    return causes


def told(causes):
    return [(cause.requirements, cause.schedules) for cause in causes]


def blocked(by, *, status="failed", signature="output value", requirement="DPC-6"):
    control = Control(
        words="without the delay", digest="d", requirement=by, status=status, signature=signature
    )
    return {"control": control, "id": f"{requirement}:GPipe:default:77aa"}


def mistaken(kind, function):
    """A rank that raised another error than the promised one."""
    return {"signature": f"{kind}: raised IndexError", "message": chain(function), "verdicts": ROOT}


def test_one_check_that_answers_to_several_mistakes_is_one_cause(of):
    (one,) = of(
        ("ERR-1", "GPipe", mistaken("input_shape", "check")), ("ERR-7", "GPipe", mistaken("batch", "check"))
    )

    assert one.requirements == ("ERR-1", "ERR-7")


def test_two_checks_that_raise_the_same_error_are_two_causes(of):
    found = of(
        ("ERR-1", "GPipe", mistaken("input_shape", "check")), ("ERR-7", "GPipe", mistaken("batch", "split"))
    )

    assert [one.requirements for one in found] == [("ERR-1",), ("ERR-7",)]


def test_one_violation_under_several_schedules_is_one_cause(of):
    (cause,) = of(("TRN-1", "GPipe", {}), ("TRN-1", "1F1B", {}))

    assert cause.schedules == ("GPipe", "1F1B")
    assert cause.occurrences == 4


def test_two_signatures_of_one_requirement_are_two_causes(of):
    assert len(of(("FWD-1", "GPipe", {}), ("FWD-1", "1F1B", {"signature": "output length"}))) == 2


def test_one_signature_with_two_factors_is_two_causes(of):
    """A gradient that is too large by m is another mistake than one that is too small."""
    large = {"localisation": where_it_begins("it is 2 times the reference's")}
    small = {"localisation": where_it_begins("it is 0.25 times the reference's")}

    assert [cause.factor for cause in of(("TRN-1", "GPipe", large), ("TRN-1", "1F1B", small))] == [
        "m",
        "1/m^2",
    ]


def test_a_factor_that_depends_on_m_is_one_for_all_m(make):
    cells = [
        make.cell(
            "TRN-1",
            schedule,
            make.violation(
                "TRN-1",
                schedule,
                make.case(p=5, m=m),
                localisation=where_it_begins(f"it is {1 / m:.6g} times the reference's"),
            ),
        )
        for schedule, m in (("GPipe", 3), ("1F1B", 4))
    ]

    (cause,) = grouped(cells)

    assert cause.factor == "1/m"


def test_a_violation_whose_factor_is_not_known_joins_those_of_its_signature(of):
    seen = {"localisation": where_it_begins("it is 2 times the reference's")}

    assert len(of(("TRN-1", "GPipe", {}), ("TRN-1", "1F1B", seen))) == 1


def test_requirements_that_see_one_factor_at_one_place_see_one_cause(of):
    scaled = {"signature": "gradient value", "localisation": where_it_begins("it is 2 times the reference's")}

    (cause,) = of(("FWD-7", "GPipe", scaled), ("TRN-1", "GPipe", scaled), ("TRN-14", "1F1B", scaled))

    assert (cause.requirement, cause.requirements) == ("TRN-1", ("TRN-1", "FWD-7", "TRN-14"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),  # nothing is known about the place
        ({"localisation": where_it_begins("")}, {"localisation": where_it_begins("")}),
        (
            {"localisation": where_it_begins("it is 2 times the reference's")},
            {"localisation": where_it_begins("it is 4 times the reference's")},
        ),
        (
            {"localisation": where_it_begins("it is microbatch 0's")},
            {"localisation": where_it_begins("it is microbatch 0's", direction="forward value")},
        ),
        (raised("forward"), raised("backward")),
        (
            {"status": "crashed", "signature": "died: SIGABRT"},
            {"status": "crashed", "signature": "died: SIGABRT"},
        ),
        ({"status": "hung", "signature": "hang"}, {"status": "hung", "signature": "hang"}),
    ],
)
def test_requirements_whose_violations_are_not_surely_alike_have_causes_of_their_own(of, one, other):
    assert len(of(("TRN-1", "GPipe", one), ("TRN-14", "GPipe", other))) == 2


def test_an_error_raised_in_one_function_is_one_cause_in_all_requirements(of):
    (cause,) = of(("LIF-2", "GPipe", raised("eval")), ("SCH-9", "1F1B", raised("eval", line=9)))

    assert (cause.requirement, cause.others) == ("SCH-9", ("LIF-2",))


def test_a_hang_in_one_function_is_one_cause_wherever_the_communication_waits(of):
    def hang(inner):
        stack = f'Current thread 0x1:\n  File "/x/torch/distributed/{inner}.py", line 3 in recv\n'
        stack += '  File "/x/engine/stage.py", line 9 in warm_up'
        places = (Place(rank=0, verdict="returned"), Place(rank=1, verdict="stuck", stack=stack))
        return {"status": "hung", "signature": "hang", "places": places}

    assert told(of(("SCH-7", "A", hang("distributed_c10d")), ("ERR-9", "B", hang("c10d_logger")))) == [
        (("SCH-7", "ERR-9"), ("A", "B"))
    ]


def test_a_blocked_violation_belongs_to_the_cause_that_its_control_showed(of):
    causes = of(
        ("DPC-6", "GPipe", blocked("FWD-1")),
        ("FWD-1", "GPipe", {"signature": "output length"}),
        ("FWD-1", "1F1B", {}),
    )

    assert {cause.violation.signature: cause.blocked_requirements for cause in causes} == {
        "output value": ("DPC-6",),
        "output length": (),
    }
    assert [cause.requirements for cause in causes] == [("FWD-1",), ("FWD-1",)]


@pytest.mark.parametrize(
    ("schedule", "signature", "number"),
    [
        ("GPipe", "gradient value", 1),  # follows from wrong outputs
        ("GPipe", "number of outputs", 1),
        ("GPipe", "not the named order", 2),
        ("1F1B", "gradient value", 2),
    ],
)
def test_what_follows_from_another_violation_of_the_same_requirement_has_its_cause(
    of, schedule, signature, number
):
    causes = of(("FWD-7", "GPipe", {}), ("FWD-7", schedule, {"signature": signature}))

    assert len(causes) == number


def test_what_is_one_requirements_business_is_its_cause_whoever_else_sees_it(of):
    (one,) = of(
        ("TRN-14", "GPipe", {"signature": "parameter missing"}),
        ("LIF-4", "GPipe", {"signature": "state has a strange name"}),
        ("DPC-1", "GPipe", {"signature": "parameter missing"}),
    )

    assert one.requirement == "LIF-4"
    assert set(one.others) == {"TRN-14", "DPC-1"}


def test_the_same_business_under_two_schedules_are_two_causes(of):
    found = of(
        ("TRN-14", "1F1B", {"signature": "parameter missing"}),
        ("LIF-4", "GPipe", {"signature": "state has a strange name"}),
    )

    assert {one.requirement for one in found} == {"LIF-4", "TRN-14"}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_two_causes_that_are_one_with_a_third_are_one_in_whatever_order_they_come(of, order):
    rows = [
        ("TRN-14", "1F1B", {"signature": "parameter missing"}),
        ("LIF-4", "GPipe", {"signature": "state has a strange name"}),
        ("DPC-1", "1F1B", {"signature": "parameter missing"}),
        ("DPC-1", "GPipe", {"signature": "parameter missing"}),
    ]

    assert len(of(*(rows[at] for at in order))) == 1


def test_errors_of_one_requirement_do_not_follow_from_each_other(of):
    causes = of(
        ("FWD-7", "GPipe", raised("split")),
        ("FWD-7", "GPipe", {**raised("merge"), "signature": "raised ValueError: no"}),
    )

    assert len(causes) == 2


def test_what_blocks_others_comes_before_what_blocks_none(of):
    causes = of(
        ("FWD-1", "GPipe", {"signature": "not the named order"}),
        ("TRN-1", "GPipe", {"signature": "gradient value"}),
        ("DPC-6", "GPipe", blocked("TRN-1")),
    )

    assert [one.requirement for one in causes] == ["TRN-1", "FWD-1"]


def test_a_chain_of_blocked_violations_ends_at_its_root(of):
    (cause,) = of(
        ("DPC-6", "GPipe", blocked("DPC-1")),
        ("DPC-1", "GPipe", blocked("FWD-1", requirement="DPC-1")),
        ("FWD-1", "GPipe", {}),
    )

    assert (cause.requirements, cause.blocked_requirements) == (("FWD-1",), ("DPC-1", "DPC-6"))


def test_what_blocks_leads_even_if_another_requirement_is_plainer(of):
    scaled = {"signature": "gradient value", "localisation": where_it_begins("it is 2 times the reference's")}

    (cause,) = of(
        ("TRN-1", "GPipe", scaled),
        ("TRN-14", "GPipe", scaled | {"id": "TRN-14:GPipe:default:1"}),
        ("DPC-6", "GPipe", blocked("TRN-14", signature="gradient value")),
    )

    assert cause.requirement == "TRN-14"


@pytest.mark.parametrize("others", [(), (("FWD-1", "GPipe", blocked("DPC-6", requirement="FWD-1")),)])
def test_a_blocker_that_the_result_does_not_show_is_accused_by_the_control_alone(of, others):
    """It was not judged in this run; or two controls contradict each other, and none of both is let off."""
    causes = of(("DPC-6", "GPipe", blocked("FWD-1")), *others)

    assert "FWD-1" in [cause.requirement for cause in causes]
    assert not any(cause.own for cause in causes)
    assert not any(cause.expected for cause in causes)


def test_what_is_expected_makes_no_unexpected_cause_and_hides_none(of):
    """An effect of an expected violation is no news; the same violation under another schedule is."""
    expected = {"expected": "known.toml:3"}

    causes = of(
        ("FWD-1", "GPipe", expected), ("DPC-6", "GPipe", blocked("FWD-1")), ("TRN-1", "GPipe", expected)
    )
    assert [(cause.requirement, cause.expected) for cause in causes] == [("FWD-1", True), ("TRN-1", True)]

    causes = of(("FWD-1", "GPipe", expected), ("FWD-1", "1F1B", {}))
    assert [(cause.schedules, cause.expected) for cause in causes] == [(("1F1B",), False), (("GPipe",), True)]


def known(identifier, *requirements, **others):
    fields = {"title": "t", "link": "a.py", "signature": "value", "file": "mine.toml"} | others
    return Known(id=identifier, requirements=requirements, **fields)


def test_violations_that_are_known_as_one_finding_have_one_cause(of):
    rows = [("TRN-1", "GPipe", {}), ("TRN-14", "GPipe", {"signature": "buffer value"})]

    (cause,) = of(*rows, known=[known("1", "TRN-14", "TRN-1")])
    assert (cause.requirement, [entry.id for entry in cause.known]) == ("TRN-14", ["1"])

    (cause,) = of(*rows, known=[known("1", "TRN-1"), known("2", "TRN-14", same_as="1")])
    assert [entry.id for entry in cause.known] == ["1", "2"]


def test_violations_that_are_known_as_two_findings_have_two_causes(of):
    rows = [("LIF-2", "GPipe", raised("eval")), ("SCH-9", "GPipe", raised("eval"))]
    entries = [known("1", "LIF-2", signature="broken"), known("2", "SCH-9", signature="broken")]

    assert len(of(*rows)) == 1
    assert len(of(*rows, known=entries)) == 2


def test_a_known_violation_under_a_schedule_that_the_finding_does_not_have_is_another_cause(of):
    entries = [known("1", "TRN-1", schedules=("GPipe",))]

    causes = of(("TRN-1", "GPipe", {}), ("TRN-1", "1F1B", {}), known=entries)

    assert [(cause.schedules, len(cause.known)) for cause in causes] == [(("GPipe",), 1), (("1F1B",), 0)]


def test_what_only_a_control_shows_is_known_by_what_it_showed(of):
    entries = [known("53", "DPC-1", signature="^died"), known("54", "DPC-1")]

    (cause,) = of(
        ("ERR-10", "GPipe", blocked("DPC-1", status="crashed", signature="died: SIGSEGV")), known=entries
    )

    assert (cause.requirement, [entry.id for entry in cause.known]) == ("DPC-1", ["53"])


def test_the_more_harmful_cause_comes_first(of):
    causes = of(
        ("TRC-4", "GPipe", {"signature": "unknown split point not named"}),
        ("LIF-3", "GPipe", {"signature": "outputs kept"}),
        ("TRN-8", "GPipe", raised("step")),
        ("SCH-7", "GPipe", {"status": "hung", "signature": "hang"}),
        ("TRN-1", "GPipe", {}),
    )

    assert [cause.requirement for cause in causes] == ["TRN-1", "SCH-7", "TRN-8", "LIF-3", "TRC-4"]


def test_an_implementation_that_is_no_pipeline_is_accused_of_that_first(of):
    causes = of(
        ("FWD-1", "GPipe", {"id": "FWD-1:GPipe:default:1234"}),
        ("TRN-4", "GPipe", blocked("FWD-1", requirement="TRN-4")),
        ("COM-7", "GPipe", {"signature": "less crosses than needed"}),
    )

    assert [(cause.requirement, cause.blocked_requirements) for cause in causes] == [
        ("COM-7", ()),
        ("FWD-1", ("TRN-4",)),
    ]


def test_the_smallest_case_shows_a_cause_best(make):
    cells = [
        make.cell("FWD-1", name, make.violation("FWD-1", name, make.case(p=p)))
        for name, p in (("GPipe", 3), ("1F1B", 2))
    ]

    (cause,) = grouped(cells)

    assert (cause.violation.case.num_ranks, cause.schedules) == (2, ("GPipe", "1F1B"))


def test_a_cause_that_no_case_shows_every_time_says_how_often(of):
    sometimes = {"confirmed": False, "reruns": 5, "shown_again": 2}

    (cause,) = of(("TRN-8", "GPipe", sometimes), ("TRN-8", "1F1B", sometimes))
    assert cause.chance == (4, 10)

    (cause,) = of(("TRN-8", "GPipe", sometimes), ("TRN-8", "1F1B", {}))
    assert cause.chance is None


def test_all_schedules_are_those_under_which_the_requirements_were_judged(make):
    cells = [
        *(make.cell("FWD-1", name, make.violation("FWD-1", name)) for name in ("A", "B", "C")),
        make.cell("FWD-1", "D", status="not_claimed", judgements=0),
    ]

    assert [cause.under() for cause in grouped(cells)] == [" under all 3 schedules"]
    assert [cause.under() for cause in grouped([*cells, make.cell("FWD-1", "E")])] == [" under A, B, C"]


def test_a_cause_is_under_the_schedules_of_the_telling_requirement_s_row(of, make):
    (cause,) = of(
        ("TRN-1", "A", raised("send")),
        ("TRN-1", "B", raised("send")),
        ("FWD-9", "A", raised("send")),
        ("FWD-9", "C", raised("send")),
    )

    assert (cause.requirement, cause.others, cause.schedules) == ("TRN-1", ("FWD-9",), ("A", "B", "C"))
    assert (cause.under(), cause.under("FWD-9")) == (" under A, B", " under A, C")


def test_many_schedules_are_counted_against_those_under_which_the_requirement_was_judged(make):
    names = "ABCDE"
    wrong = [make.cell("FWD-1", name, make.violation("FWD-1", name)) for name in names]
    right = [make.cell("FWD-1", "F"), make.cell("TRN-1", "G")]

    assert [cause.under() for cause in grouped(wrong)] == [" under all 5 schedules"]
    assert [cause.under() for cause in grouped([*wrong, *right])] == [" under 5 of 6 schedules"]


def test_outcomes_are_those_of_the_telling_requirement_s_cells(of):
    known = Known(
        file="k", id="8", title="t", link="l", requirements=("FWD-2", "FWD-24"), signature="length|raised"
    )
    (cause,) = of(
        ("FWD-2", "A", {"signature": "output length"}),
        ("FWD-2", "B", raised("send")),
        ("FWD-2", "C", raised("send")),
        ("FWD-24", "D", {"signature": "length"}),
        known=[known],
    )

    assert cause.outcomes == (("failed", " under A"), ("error", " under B, C"))


def test_a_requirement_that_was_not_selected_is_violated_as_its_controls_show(of):
    (cause,) = of(("TRN-1", "A", blocked("FWD-1", status="hung", signature="hang", requirement="TRN-1")))

    assert (cause.requirement, cause.outcomes) == ("FWD-1", (("hung", " under A"),))


def test_a_result_without_violations_has_no_cause(make):
    assert causes_of(make.result(make.cell("FWD-1", "GPipe"))) == ()


def test_a_silent_violation_shows_a_cause_better_than_a_smaller_error(make):
    large = make.violation("FWD-2", "GPipe", make.case(p=3), signature="output length")
    small = make.violation("FWD-2", "1F1B", make.case(p=2), **raised("step"))
    entry = known("8", "FWD-2", signature="output length|broken")

    (cause,) = grouped([make.cell("FWD-2", "GPipe", large), make.cell("FWD-2", "1F1B", small)], known=[entry])

    assert (cause.violation, cause.harm.name) == (large, "SILENT")
