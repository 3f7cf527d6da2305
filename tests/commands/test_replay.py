"""Finding what to replay: a case file, or a violation in a result file."""

import json
import zipfile
from pathlib import Path

import msgspec
import pytest

from pipeconform.campaign.again import Sought
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World, encode_case
from pipeconform.commands.replay import verdict
from pipeconform.commands.stored import Stored, read_stored
from pipeconform.errors import BadCaseError, BadResultError, UnknownNameError, UsageError
from pipeconform.export.question import MEMBER, read_question
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.report.location import DEFAULT_RESULT
from pipeconform.report.result import (
    Cell,
    Environment,
    Implementation,
    Result,
    Run,
    Totals,
    Violation,
    write_result,
)

CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=2, num_microbatches=2),),
)
VIOLATION = Violation(
    id="FWD-1:GPipe:debug:1f3a",
    status="failed",
    signature="output value",
    message="",
    where="",
    case=CASE,
    digest=CASE.digest,
    minimal=True,
    confirmed=True,
    shrink_executions=0,
    occurrences=1,
    verdicts="",
    replay="",
)


def result(*violations):
    return Result(
        product_version="0.1.0",
        standard_version="0.1",
        created="",
        environment=Environment(python="", torch="", os="", machine="", cpus=1, device="cpu", backend="gloo"),
        implementation=Implementation(reference="torch", name="torch", version="1"),
        run=Run(profile="smoke", seed=0, corpus=1, search=0, schedules=("GPipe",), max_ranks=2),
        totals=Totals(judgements=1, executions=1, distinct_cases=1, distinct_cases_several_ranks=1),
        cells=(
            Cell(
                requirement="FWD-1",
                schedule="GPipe",
                variant="debug",
                status="failed",
                violations=violations,
            ),
        ),
    )


@pytest.fixture
def damaged(tmp_path):
    """Write the case with one change to its JSON and return the path."""

    def write(change):
        data = json.loads(encode_case(CASE))
        change(data)
        path = tmp_path / "case.json"
        path.write_text(json.dumps(data))
        return str(path)

    return write


def test_a_case_file_is_read(tmp_path):
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(CASE))
    stored = read_stored(str(path), result=DEFAULT_RESULT)

    assert (stored.case, stored.requirement, stored.violation) == (CASE, None, None)


def test_a_violation_is_found_by_its_id_with_its_requirement_and_variant(tmp_path):
    write_result(result(VIOLATION), tmp_path / "result.json")
    stored = read_stored(VIOLATION.id, result=tmp_path)

    assert (stored.case, stored.requirement, stored.variant) == (CASE, "FWD-1", "debug")


def test_a_cell_that_could_not_be_judged_is_found_with_its_case(tmp_path):
    broken = Cell(requirement="TRN-1", schedule="GPipe", variant="debug", status="error", case=CASE)
    found = result(VIOLATION)
    write_result(msgspec.structs.replace(found, cells=(*found.cells, broken)), tmp_path / "result.json")
    stored = read_stored("TRN-1:GPipe:debug", result=tmp_path)

    assert (stored.case, stored.requirement, stored.variant) == (CASE, "TRN-1", "debug")
    assert (stored.violation, stored.sought) == (None, None)


def test_an_unknown_id_is_answered_with_the_nearest(tmp_path):
    write_result(result(VIOLATION), tmp_path / "result.json")

    with pytest.raises(UnknownNameError, match=r"'FWD-1:GPipe:1f3a'; nearest: FWD-1:GPipe:debug:1f3a"):
        read_stored("FWD-1:GPipe:1f3a", result=tmp_path)


def test_an_id_may_be_longer_than_a_file_s_name(tmp_path):
    write_result(result(VIOLATION), tmp_path / "result.json")

    with pytest.raises(UnknownNameError, match="FWD-1:default:default"):
        read_stored("FWD-1" + ":default" * 100, result=tmp_path)


def test_a_result_without_violations_has_nothing_to_replay(tmp_path):
    write_result(result(), tmp_path / "result.json")

    with pytest.raises(UsageError, match="holds no violation"):
        read_stored("FWD-1:GPipe:1f3a", result=tmp_path)


def test_a_missing_result_is_named(tmp_path):
    with pytest.raises(BadResultError, match=r"cannot read .*none\.json: No such file"):
        read_stored("FWD-1:GPipe:1f3a", result=tmp_path / "none.json")


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "result.json").write_text('{"format": 1, "cells": [')

    with pytest.raises(BadResultError, match=r"result\.json: damaged, not JSON"):
        read_stored("FWD-1:GPipe:1f3a", result=tmp_path)


def test_a_result_of_another_version_is_named(tmp_path):
    data = msgspec.to_builtins(result(VIOLATION)) | {"format": 99}
    (tmp_path / "result.json").write_text(json.dumps(data))

    with pytest.raises(BadResultError, match=r"result format 99; this version reads 1"):
        read_stored("FWD-1:GPipe:1f3a", result=tmp_path)


def test_a_result_file_in_the_place_of_a_case_is_told_how_to_be_used(tmp_path):
    path = tmp_path / "result.json"
    write_result(result(VIOLATION), path)

    with pytest.raises(
        BadCaseError, match=r"is a result file: replay one of its violations by ID, with --result"
    ):
        read_stored(str(path), result=DEFAULT_RESULT)


def test_a_file_that_is_no_json_is_named(tmp_path):
    path = tmp_path / "case.json"
    path.write_text("{nonsense")

    with pytest.raises(BadCaseError, match=r"case\.json: damaged, not JSON"):
        read_stored(str(path), result=DEFAULT_RESULT)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda case: case.update(format=99), r"case\.json: case format 99 is not supported"),
        (lambda case: case.update(colour="red"), r"case\.json: not a case: .*colour"),
        (lambda case: case.pop("schedule"), r"case\.json: not a case: .*schedule"),
        (lambda case: case["model"].update(width="wide"), r"case\.json: not a case: .*model\.width"),
        (
            lambda case: case["world"].update(size=3, pipeline_ranks=[0, 1, 2]),
            r"case\.json: model\.stages has 2 stages, but p = 3 ranks with v = 1 stages each need 3",
        ),
    ],
)
def test_a_damaged_or_impossible_case_is_told_by_its_field(damaged, change, expected):
    with pytest.raises(BadCaseError, match=expected):
        read_stored(damaged(change), result=DEFAULT_RESULT)


def outcome(kind="output value", **where):
    return Outcome(Status.FAILED, Finding(kind=kind, message="it differs\nhere", **where))


def stored(violation=None):
    requirement = None if violation is None else "FWD-1"
    return Stored(name="case.json", case=CASE, requirement=requirement, violation=violation)


def test_a_case_that_shows_nothing_is_fixed():
    assert verdict(stored(VIOLATION), {"FWD-1": ()}) == ("FIXED: FWD-1 met", 0)


def test_a_case_that_shows_the_same_is_reproduced_and_told_once():
    outcomes = {"FWD-1": (outcome(step=0, rank=1), outcome(step=1, rank=1), outcome("something else"))}

    assert verdict(stored(VIOLATION), outcomes) == (
        "REPRODUCED:\nFWD-1 failed: output value (step 0, rank 1)\n  it differs\n  here\n  … and 1 more like it",
        1,
    )


def test_what_ran_is_drawn_where_it_was_observed():
    finding = Finding(kind="not the named order", message="it differs", step=0, rank=0, position=1)
    ran = (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1"))
    found = Outcome(Status.FAILED, finding, timeline=ran, first_wrong=(0, 1))

    text, _ = verdict(stored(), {"SCH-2": (found,)})

    assert text.splitlines()[1:] == [
        "SCH-2 failed: not the named order (step 0, rank 0)",
        "  it differs",
        "  the computations that ran, per pipeline rank; ^ the first wrong one:",
        "  rank 0 0F0|0F1|········0B0----|····0B1----|",
        "             ^^^",
        "  rank 1 ····1F0|1B0----|1F1|1B1----|········",
    ]


def test_the_same_signature_of_another_requirement_is_another_violation():
    text, code = verdict(stored(VIOLATION), {"FWD-2": (outcome(),)})

    assert (text.splitlines()[0], code) == (
        "NOT REPRODUCED (output value), but the case shows another violation:",
        1,
    )


def test_a_case_that_shows_something_else_says_so():
    text, code = verdict(stored(VIOLATION), {"FWD-1": (outcome("output length"),)})

    assert (text.splitlines()[0], code) == (
        "NOT REPRODUCED (output value), but the case shows another violation:",
        1,
    )


def test_a_bare_case_shows_whatever_it_shows():
    text, code = verdict(
        stored(), {"FWD-1": (outcome(),), "TRN-1": (outcome("gradient value"),), "TRN-2": ()}
    )

    assert code == 1
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "VIOLATED:",
        "FWD-1 failed: output value",
        "TRN-1 failed: gradient value",
    ]


def test_a_violation_of_torch_is_written_as_plain_torch(typed, tmp_path):
    found = result(VIOLATION)
    cell = msgspec.structs.replace(found.cells[0], variant="default")
    write_result(msgspec.structs.replace(found, cells=(cell,)), tmp_path / "result.json")
    code, out, err = typed(
        "replay", VIOLATION.id, "--impl", "torch", "--result", tmp_path, "--script", "shown.py"
    )
    assert (code, err) == (0, "")

    text = (tmp_path / "shown.py").read_text()
    number = len(text.splitlines())
    assert out == f"wrote shown.py, {number} lines of plain torch; run it with: python shown.py\n"
    assert "pipeconform" not in text
    assert not (tmp_path / "shown.zip").exists()


def test_a_violation_is_written_as_a_program_with_the_settings_of_its_variant(typed, tmp_path):
    unseen = msgspec.structs.replace(VIOLATION, signature="output order")

    def written(variant):
        found = result(unseen)
        cell = msgspec.structs.replace(found.cells[0], variant=variant)
        write_result(msgspec.structs.replace(found, cells=(cell,)), tmp_path / "result.json")
        return typed("replay", VIOLATION.id, "--impl", "torch", "--result", tmp_path, "--script", "shown.py")

    code, out, err = written("validated")
    text = (tmp_path / "shown.py").read_text()
    with zipfile.ZipFile(tmp_path / "shown.zip") as archive:
        asked = read_question(archive.read(MEMBER))

    assert (code, err) == (0, "")
    why = "what was found (output order) is not seen in the values of a step"
    assert out.splitlines() == [
        f"not as plain torch: {why}",
        "wrote shown.py and shown.zip; run it with: python shown.py",
    ]
    assert text.startswith('"""torch.distributed.pipelining ')
    assert "FWD-1 failed: output order" in text
    assert (asked.variant, asked.settings) == ("validated", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert asked.sought == Sought(requirement="FWD-1", status="failed", signature="output order")

    code, _, err = written("debug")
    assert code == 2
    assert "environment variant" in err


def test_a_program_has_the_name_of_one(typed, tmp_path):
    write_result(result(VIOLATION), tmp_path / "result.json")
    code, _, err = typed("replay", VIOLATION.id, "--impl", "torch", "--result", tmp_path, "--script", "shown")

    assert code == 2
    assert "--script shown: expected a name that ends in .py" in err


def test_what_hung_is_watched_and_its_deadlock_proved(typed, tmp_path):
    engine = f"{Path(__file__).with_name('circular_engine.py')}:Circular"
    hung = msgspec.structs.replace(VIOLATION, status="hung", signature="hung", id="FWD-1:GPipe:default:1f3a")
    found = result(hung)
    cell = msgspec.structs.replace(found.cells[0], variant="default", status="hung")
    write_result(msgspec.structs.replace(found, cells=(cell,)), tmp_path / "result.json")
    code, out, _ = typed("replay", hung.id, "--impl", engine, "--result", tmp_path)

    assert code == 1
    assert "every rank waits for one that waits too" in out
    assert "rank 0 waits for receive of float32[3] from rank 1" in out
    assert "a circle: rank 0 waits for rank 1 waits for rank 0" in out
