import datetime
import itertools
from collections import Counter

import msgspec
import pytest

from pipeconform.campaign import pipeline_runner as module
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.pipeline import AskedOfPipeline
from pipeconform.campaign.telling import weights
from pipeconform.case.case import Case
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import UnknownNameError, UsageError
from pipeconform.gate.expectations import Expectation, StoredCase
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec import profile, requirement
from tests.campaign.campaigns import ExecutesNothing, campaign
from tests.case.examples import small_case
from tests.facts import tells

CASES = {}
"""Every case that was judged, by digest."""


def drawn_case(digest):
    return CASES[digest]


def drawn_cases(cell):
    """The cases that were judged for a cell that met its requirement."""
    assert cell.distinct_cases == len(CASES)
    return CASES.values()


@pytest.fixture
def cell(monkeypatch):
    """Judge one cell by a rule (case, thorough) → kind or None; returns the cell and what was asked.

    `status` is that of every kind, or a function of the kind. `others` says what other requirements see in controls.
    """

    def judged(
        rule,
        expectations=(),
        ratio=None,
        size="core",
        status=Status.FAILED,
        compared=1,
        others=None,
        message=None,
    ):
        asked = []
        CASES.clear()

        def judge(row, execution, _executor, *, thorough=True, anew=True, gauge=None):
            if row.id != "TRN-4":
                # only the controls of TRN-4's violations are judged by others
                seen = (others or {}).get(row.id)
                return () if seen is None else (Outcome(Status.FAILED, Finding(kind=seen, message="other")),)
            asked.append((execution.case.digest, thorough))
            if gauge is not None:
                gauge.count(compared)
            if gauge is not None and ratio is not None:
                gauge.note(ratio(execution.case))
            CASES[execution.case.digest] = execution.case
            kind = rule(execution.case, thorough)
            told = message() if message else "established" if thorough else "guessed"
            if kind is None:
                return ()
            own = status(kind) if callable(status) else status
            return (Outcome(own, Finding(kind=kind, message=told)),)

        monkeypatch.setattr(module, "judge", judge)
        monkeypatch.setattr(module, "localise", lambda *_: None)
        run = campaign(size, expectations=expectations)
        return judge_cell(run, requirement("TRN-4"), "GPipe"), asked

    return judged


def test_every_verdict_is_thorough_while_nothing_is_found(cell):
    """A case that passes is never judged by guesses."""
    found, asked = cell(lambda case, thorough: None)

    assert (found.status, found.violations) == ("passed", ())
    assert all(thorough for _, thorough in asked)


def test_a_cell_that_compared_nothing_is_not_ok(cell):
    """However often it was judged; what was found all the same is a violation."""
    void, _ = cell(lambda case, thorough: None, compared=0)
    wrong, _ = cell(lambda case, thorough: "gradient value", compared=0)

    assert (void.status, void.compared, void.judgements > 0) == ("nothing_compared", 0, True)
    assert void.reason.startswith("nothing compared: ")
    assert wrong.status == "failed"


def test_a_stored_case_that_shows_its_violation_sometimes_is_not_stale(cell):
    drawn = cell(lambda case, thorough: None)[0]
    case = next(iter(drawn_cases(drawn)))
    entries = {
        chance: Expectation(
            requirement="TRN-4",
            status=("failed", "flaky", "passed") if chance else "failed",
            signature="gradient value",
            reason="chance",
            issue="https://example.org/7",
            owner="us",
            expires=datetime.date(2030, 1, 1),
            file="known.toml",
            line=3,
            stored=(StoredCase(path="one.json", case=case),),
        )
        for chance in (True, False)
    }

    found = {
        chance: cell(lambda case, thorough: None, expectations=(one,))[0].stale
        for chance, one in entries.items()
    }

    assert found == {True: (), False: ("one.json",)}


def test_what_every_judgement_compared_is_added_up(cell):
    found, _ = cell(lambda case, thorough: None, compared=3)

    assert (found.status, found.reason) == ("passed", "")
    assert found.compared == 3 * found.judgements


def test_the_smallest_case_is_established_after_quick_shrinking(cell):
    """Candidates are chosen quickly; what is reported was judged thoroughly."""
    found, asked = cell(lambda case, thorough: "gradient value" if case.model.width > 1 else None)

    (violation,) = found.violations
    assert (violation.message, violation.case.model.width) == ("established", 2)
    assert asked[-1] == (violation.digest, True)
    assert {thorough for _, thorough in asked[-1 - violation.shrink_executions : -1]} == {False}
    assert violation.shrink_executions <= 10
    assert violation.confirmed


def test_the_hangs_of_a_cell_are_made_small_within_one_budget(cell):
    """Each costs a wait and new processes, so several signatures share what one alone may take."""

    def many(case, thorough):
        return f"hang of {case.num_ranks} ranks"

    hangs, _ = cell(many, status=Status.HUNG)
    others, _ = cell(many)
    only, _ = cell(lambda case, thorough: "hang", status=Status.HUNG)
    (alone,) = only.violations

    def spent(found):
        return sum(one.shrink_executions for one in found.violations)

    assert len(hangs.violations) == 4
    assert all(one.confirmed for one in hangs.violations)
    assert spent(hangs) <= 20 + 4  # each is shown once more, whatever is left
    assert spent(others) > spent(hangs)
    assert alone.shrink_executions <= 20


def test_a_smallest_case_that_is_not_established_gives_way_to_the_first(cell):
    """Guesses lead shrinking astray where rounding looks enormous; then the case itself is reported."""
    found, _ = cell(lambda case, thorough: "gradient value" if case.num_ranks > 1 or not thorough else None)

    (violation,) = found.violations
    assert (violation.message, violation.minimal) == ("established", False)
    assert violation.case.num_ranks > 1


def test_a_new_kind_of_violation_is_established_before_it_is_noted(cell):
    """Guesses add to the occurrences of what is known, and nothing else."""
    seen = []

    def rule(case, thorough):
        seen.append(case.digest)
        if seen[0] == case.digest:
            return "gradient value"
        return None if thorough else "another kind"

    found, _ = cell(rule)

    assert [violation.signature for violation in found.violations] == ["gradient value"]
    assert found.violations[0].occurrences == 1


def test_the_largest_case_is_kept_with_what_it_shows(cell):
    """A second mistake of the same kind may show only there."""
    found, _ = cell(lambda case, thorough: "declared and executed differ", message=lambda: "rank 0 differs")

    (violation,) = found.violations
    assert violation.large.case.num_ranks == max(case.num_ranks for case in CASES.values())
    assert violation.large.case.num_ranks > violation.case.num_ranks
    assert violation.large.line == "rank 0 differs"


def test_what_the_largest_case_shows_is_not_kept_where_it_changes(cell):
    lines = itertools.count()
    found, _ = cell(
        lambda case, thorough: "declared and executed differ",
        message=lambda: f"step {next(lines)}",
    )

    assert found.violations[0].large is None


def test_a_verdict_that_changes_from_one_execution_to_the_next_is_flaky(cell):
    """The same case and seed, another verdict: executed again several times, reported, never dropped."""
    executions = {}

    def rule(case, thorough):
        executions[case.digest] = executions.get(case.digest, 0) + 1
        return "gradient value" if executions[case.digest] == 1 and len(executions) == 3 else None

    found, _ = cell(rule)

    (violation,) = found.violations
    assert (found.status, violation.status, violation.confirmed) == ("flaky", "failed", False)
    assert (violation.reruns, violation.shown_again) == (5, 0)


def test_what_shows_by_chance_is_blocked_too_where_a_more_basic_requirement_explains_it(cell):
    """And if none does, a control that passes proves nothing."""

    def by_chance():
        executions = Counter()

        def rule(case, thorough):
            executions[case.digest] += 1
            return "gradient value" if executions[case.digest] == 1 and len(executions) == 3 else None

        return rule

    explained, _ = cell(by_chance(), others={"TRN-3": "scale"})
    alone, _ = cell(by_chance())

    assert (explained.status, explained.violations[0].confirmed) == ("blocked", False)
    assert explained.violations[0].blocked_by == "TRN-3"
    assert (alone.status, alone.violations[0].control) == ("flaky", None)


@pytest.mark.parametrize("kinds", [("no memory", "hang"), ("hang", "gradient value", "hang", "hang")])
def test_a_case_that_is_wrong_every_time_is_not_flaky_though_never_alike(cell, kinds):
    """Which way it goes wrong is chance; that it does is not."""
    ways = itertools.cycle(kinds)

    found, _ = cell(
        lambda case, thorough: next(ways),
        status=lambda kind: Status.FAILED if "gradient" in kind else Status.ERROR,
    )

    assert found.status in ("failed", "error")
    assert all(violation.confirmed for violation in found.violations)
    assert any(violation.shown_otherwise for violation in found.violations)


def test_a_wrong_value_that_is_right_again_is_flaky_whatever_else_is_wrong(cell):
    """Wrong values show side by side; one does not hide another."""
    executions = {}

    def rule(case, thorough):
        executions[case.digest] = executions.get(case.digest, 0) + 1
        return "gradient value" if executions[case.digest] == 1 else "loss value"

    found, _ = cell(rule)

    assert {one.signature: one.confirmed for one in found.violations} == {"gradient value": False}
    assert found.status == "flaky"


def test_a_confirmed_violation_beside_a_flaky_one_gives_the_status(cell):
    seen = {}

    def rule(case, thorough):
        seen[case.digest] = seen.get(case.digest, 0) + 1
        if seen[case.digest] == 1 and len(seen) == 2:
            return "once"
        return "always" if case.num_ranks > 1 else None

    found, _ = cell(rule)

    assert found.status == "failed"
    assert {violation.signature: violation.confirmed for violation in found.violations} == {
        "once": False,
        "always": True,
    }


def test_judgements_are_counted_by_the_number_of_microbatches(cell):
    found, _ = cell(lambda case, thorough: None)

    assert set(found.microbatches) <= {"one", "fewer", "equal", "more"}
    assert sum(found.microbatches.values()) >= found.judgements


EXPECTED = Expectation(
    requirement="TRN-4",
    status="failed",
    signature="gradient value",
    reason="known",
    issue="https://example.org/7",
    owner="us",
    expires=datetime.date(2031, 1, 1),
    file="expectations.toml",
    line=3,
)


def test_expected_violations_are_counted_and_not_shrunk(cell):
    found, asked = cell(lambda case, thorough: "gradient value", expectations=(EXPECTED,))

    (violation,) = found.violations
    assert (violation.expected, violation.minimal) == ("expectations.toml:3", False)
    assert violation.occurrences == found.judgements
    assert found.is_expected
    assert len(asked) < 3 * found.judgements


def test_another_signature_inside_an_expected_failure_is_seen_and_shrunk(cell):
    """A real defect of another kind does not hide behind the expected one."""

    def rule(case, thorough):
        return "buffer value" if case.num_ranks == 3 else "gradient value"

    found, _ = cell(rule, expectations=(EXPECTED,))
    by_kind = {violation.signature: violation for violation in found.violations}

    assert not found.is_expected
    assert by_kind["gradient value"].expected
    assert (by_kind["buffer value"].expected, by_kind["buffer value"].minimal) == ("", True)


def test_an_expected_status_covers_no_other_status(cell):
    hung = msgspec.structs.replace(EXPECTED, status="hung")
    found, _ = cell(lambda case, thorough: "gradient value", expectations=(hung,))

    assert [violation.expected for violation in found.violations] == [""]


def test_sizes_that_an_entry_does_not_name_are_not_covered(cell):
    narrow = msgspec.structs.replace(EXPECTED, p=(2,))
    found, _ = cell(lambda case, thorough: "gradient value", expectations=(narrow,))
    unexpected = [violation for violation in found.violations if not violation.expected]

    assert [violation.expected for violation in found.violations if violation.expected] == [narrow.label]
    assert [violation.case.num_ranks == 2 for violation in unexpected] == [False]
    assert len({violation.id for violation in found.violations}) == 2


def test_a_stored_case_is_executed_first(cell):
    _, asked = cell(lambda case, thorough: None)
    case = drawn_case(asked[3][0])
    stored = StoredCase(path="cases/one.json", case=case)
    entry = msgspec.structs.replace(EXPECTED, stored=(stored,))

    found, asked = cell(
        lambda one, thorough: "gradient value" if one.digest == case.digest else None, expectations=(entry,)
    )

    assert asked[0] == (case.digest, True)
    assert (found.violations[0].case, found.violations[0].confirmed, found.stale) == (case, True, ())


@pytest.mark.parametrize(("text", "expected"), [("", True), ("established", True), ("something else", False)])
def test_a_stored_case_that_shows_another_violation_of_its_kind_is_not_expected(cell, text, expected):
    """A new mistake beside a known one would otherwise be hidden by it."""
    _, asked = cell(lambda case, thorough: None)
    case = drawn_case(asked[3][0])
    entry = msgspec.structs.replace(EXPECTED, stored=(StoredCase(path="one.json", case=case, text=text),))

    found, _ = cell(
        lambda one, thorough: "gradient value" if one.digest == case.digest else None, expectations=(entry,)
    )

    assert found.is_expected is expected
    told = any("expected of one.json: something else" in one.message for one in found.violations)
    assert told is not expected


def test_a_stored_case_that_passes_now_is_told(cell):
    _, asked = cell(lambda case, thorough: None)
    stored = StoredCase(path="cases/one.json", case=drawn_case(asked[3][0]))
    entry = msgspec.structs.replace(EXPECTED, stored=(stored,))

    found, _ = cell(lambda case, thorough: None, expectations=(entry,))

    assert (found.status, found.stale) == ("passed", ("cases/one.json",))


def test_a_subject_that_needs_more_stages_than_there_are_ranks_is_skipped_with_a_reason():
    """A skip connection needs three stages; two ranks with one stage each have two."""
    found = judge_cell(campaign("smoke", max_ranks=2), requirement("FWD-10"), "GPipe")

    assert found.status == "skipped"
    assert "needs more stages than 2 ranks have under GPipe" in found.reason


def test_the_worst_ratio_to_a_bound_is_told(cell):
    found, _ = cell(lambda case, thorough: None, ratio=lambda case: 1 / (1 + case.model.width))

    assert found.worst_ratio == max(1 / (1 + case.model.width) for case in drawn_cases(found))


def test_a_cell_that_needed_no_bound_tells_of_none(cell):
    found, _ = cell(lambda case, thorough: None)

    assert found.worst_ratio is None


def test_the_search_goes_after_large_errors_and_what_it_finds_is_made_small(cell):
    """Hypothesis is told of every case how near it came, also when it searches its way to a violation again."""
    widest = []

    def rule(case, thorough):
        widest.append(case.model.width)
        return

    cell(rule, size="full")
    aimless = widest[60:]
    del widest[:]
    cell(rule, size="full", ratio=lambda case: case.model.width / 1000)
    steered = widest[60:]
    assert sum(steered) / len(steered) > sum(aimless) / len(aimless)

    calls = []

    def late(case, thorough):
        calls.append(case.digest)
        return "gradient value" if len(set(calls)) > 100 and case.model.width >= 3 else None

    found, _ = cell(late, size="full", ratio=lambda case: case.model.width / 1000)
    (violation,) = found.violations
    assert violation.confirmed
    assert violation.case.model.width == 3


def test_who_promises_no_error_is_not_asked_about_promised_errors():
    """Nothing could be found there, and an empty pass would say that something was looked at."""
    found = judge_cell(campaign(), requirement("ERR-15"), "GPipe")

    assert (found.status, found.judgements) == ("not_claimed", 0)
    assert tells(found.reason, "nobody promises", "errors", "ERR-15")


@pytest.mark.parametrize(("row", "share"), [("TRN-1", "corpus"), ("DPC-1", "costly")])
def test_what_costs_much_is_judged_by_fewer_cases(row, share):
    core = profile("core")
    asked = campaign().ask(requirement(row), "GPipe", "default")

    assert {corpus.size for corpus in asked.corpora} == {getattr(core, share)}
    assert core.costly < core.corpus


@pytest.fixture
def budgets(monkeypatch):
    """The executions that making a case small may take under a schedule if judging always ends in `status`."""

    def given(schedule, *, status=Status.FAILED, **changes):
        found = []

        class Told(AskedOfPipeline):
            def smallest(self, corpus, case, outcome, check, *, budget):
                found.append(budget.executions)
                return super().smallest(corpus, case, outcome, check, budget=budget)

        monkeypatch.setattr("pipeconform.campaign.pipeline.AskedOfPipeline", Told)
        monkeypatch.setattr(
            module, "judge", lambda *_, **__: (Outcome(status, Finding(kind="wrong", message="wrong")),)
        )
        judge_cell(campaign(max_ranks=2, **changes), requirement("TRN-1"), schedule)
        return found

    return given


@pytest.mark.parametrize(("schedule", "executions"), [("GPipe", 25), ("1F1B", 5)])
def test_most_of_what_makes_violations_small_is_spent_under_the_first_schedule(budgets, schedule, executions):
    assert budgets(schedule, cell_cost=25, later_cost=5) == [executions]


@pytest.mark.parametrize(
    ("status", "executions"),
    [(Status.FAILED, 60), (Status.ERROR, 20), (Status.CRASHED, 10), (Status.HUNG, 3)],
)
def test_what_takes_long_to_end_is_executed_less_often(budgets, status, executions):
    """The clock is not asked: a busy machine would find other cases, and they other controls."""
    assert budgets("GPipe", status=status, shrink_cost=60) == [executions]


def test_what_a_schedule_is_asked_is_counted_as_it_is_judged(monkeypatch):
    """The count decides which worker begins with what; requirements that any schedule will do for are asked of two."""
    rows = [requirement("FWD-1"), requirement("TRC-4"), requirement("SPL-1")]
    monkeypatch.setattr("pipeconform.campaign.telling.requirements_of", lambda kind: rows)

    found = weights(campaign())

    assert {
        name: found[name].num_cells for name in ("ForwardOnly", "GPipe", "1F1B", "ZBVZeroBubble", "DualPipeV")
    } == {
        "ForwardOnly": 1,
        "GPipe": 2,
        "1F1B": 1,
        "ZBVZeroBubble": 2,
        "DualPipeV": 3,
    }
    assert {one.num_ranks for one in found.values()} == {4}


class OwnsPipelines(ExecutesNothing):
    """A runner that knows which cases are its own."""

    promises = True

    def own(self, case):
        return case if isinstance(case, Case) else None


def _two_variants(**changes):
    made = campaign(**changes)
    made.runners = {"default": OwnsPipelines(), "validated": OwnsPipelines()}
    return made


def test_a_variant_that_the_implementation_does_not_name_is_refused():
    with pytest.raises(UnknownNameError, match="unknown environment variant 'validatd'; nearest: validated"):
        _two_variants().runner("validatd")


@pytest.mark.parametrize(
    ("varied", "requirement", "expected"),
    [
        (None, "FWD-1", ("default", "validated")),
        (("ERR",), "ERR-3", ("default", "validated")),
        (("ERR",), "FWD-1", ("default",)),
        ((), "ERR-3", ("default",)),
    ],
)
def test_variants_are_judged_in_the_chapters_that_the_profile_names(varied, requirement, expected):
    assert _two_variants(varied=varied).variants_of(requirement) == expected


def test_a_stored_case_of_a_wrapper_is_refused_by_a_pipeline():
    with pytest.raises(
        UsageError, match=r"^torch is a pipeline, but kept.json is not a case for a pipeline$"
    ):
        _two_variants().judged_by(WrapperCase(module="plain"), name="kept.json")


def test_a_stored_case_is_judged_by_what_it_was_stored_for():
    made, case = _two_variants(), small_case()
    assert [row.id for row in made.judged_by(case, name="kept.json", stored="TRN-1")] == ["TRN-1"]
    assert [row.id for row in made.judged_by(case, name="kept.json", asked="FWD-1", stored="TRN-1")] == [
        "FWD-1"
    ]


def test_executions_are_counted_by_case():
    made, case = _two_variants(), small_case()
    made.count(case)
    first = set(made.points)
    made.count(case, times=3)
    assert made.executed == {case.digest: 4}
    assert made.num_ranks == {case.digest: case.num_ranks}
    assert first == made.points == made.target.points(case) != set()
