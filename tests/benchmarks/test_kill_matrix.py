"""The kill matrix: its page says what the records say, and a stopped run goes on where it was."""

import msgspec
import pytest
from pipeconform.reference_impl import mutants
from pipeconform.reference_impl.faults import FAULTS

from benchmarks.kill_matrix.page import page
from benchmarks.kill_matrix.records import FaultRecord, MutantRecord, append, read
from benchmarks.kill_matrix.running import run_faults, run_mutants
from benchmarks.kill_matrix.sweep import nearest_first, questions
from pipeconform.campaign.executor import describe
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case.focus import WHOLE
from pipeconform.ranks.pools import Pools


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=PRELOAD) as opened:
        yield opened


def fault(name, **changes):
    record = FaultRecord(
        name=name,
        detected=True,
        control=True,
        shown=("failed: x",),
        message="stage 0",
        executions=3,
        seconds=1.5,
    )
    return msgspec.structs.replace(record, **changes)


def killed(name, **changes):
    record = MutantRecord(
        name=name,
        loads=True,
        requirement="TRN-1",
        status="failed",
        kind="gradient value",
        message="stage 1 | differs\nat length",
        executions=7,
        seconds=2.0,
    )
    return msgspec.structs.replace(record, **changes)


def survivor(name, *, executions=400):
    return MutantRecord(name=name, loads=True, executions=executions, seconds=9.0)


@pytest.fixture
def written():
    drawn = mutants.drawn(5)
    dead, proved, unknown, stillborn, _ = (one.name for one in drawn)
    records = {
        dead: killed(dead),
        proved: survivor(proved),
        unknown: survivor(unknown),
        stillborn: MutantRecord(name=stillborn, loads=False),
    }
    labels = {name: FAULTS[name] for name in ("not-divided", "losses-divided", "raises", "exits")}
    faults = {
        "not-divided": fault("not-divided"),
        "losses-divided": fault("losses-divided", detected=False),
        "raises": fault("raises", control=False),
    }
    text = page(
        faults=faults,
        labels=labels,
        mutants=records,
        drawn=drawn,
        equivalent={proved: "Both orders add the same numbers."},
        note="Run on a Sunday.",
    )
    return text, (dead, proved, unknown, stillborn)


def test_the_page_counts_and_names_what_was_missed(written):
    text, (_, _, unknown, stillborn) = written

    assert "- 1 of 3 faults detected; median 1.5 s of wall time each, 1 within 5 s" in text
    assert "- 1 of 3 mutants killed, 2 survive: 1 proved equivalent, 1 open" in text
    assert "- missed faults: losses-divided, raises\n" in text
    assert "- not run yet (newer than the run): exits\n" in text
    assert f"- open mutants: `{unknown}`\n" in text
    assert f"Could not be imported, not counted: {stillborn}." in text
    assert "Run on a Sunday." in text


def test_the_three_sources_stand_apart_and_reported_defects_link_to_their_reports(written):
    text, (dead, proved, unknown, _) = written
    reported, made, invented = (
        text.split(f"\n## {name}")[1] for name in ("Reported", "Mutants", "Hand-written")
    )

    assert f"| [not-divided]({FAULTS['not-divided'].source}) | TRN-3 |" in reported.split("\n## ")[0]
    assert "| losses-divided | TRN-2 |" in invented
    assert "**missed** (failed)" in invented
    assert "**accused the reference too** (error)" in invented
    assert "Both orders add the same numbers. |" in made
    assert all(f"| `{name}` |" in made for name in (dead, proved, unknown))
    assert r"stage 1 \| differs |" in made


def test_records_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "new" / "faults.jsonl"
    for record in (fault("a"), fault("b"), fault("a", seconds=2.5)):
        append(record, path)

    assert read(path, FaultRecord) == {"a": fault("a", seconds=2.5), "b": fault("b")}
    assert read(tmp_path / "none.jsonl", FaultRecord) == {}


@pytest.mark.slow
def test_a_fault_and_a_mutant_run_once_and_are_not_run_again(pools, tmp_path, capsys):
    one = next(
        one
        for one in mutants.drawn(10_000)
        if (one.module, one.mutation.where, one.mutation.operator) == ("stage", "Stage.forward", "result")
    )
    for _ in range(2):
        run_faults([FAULTS["not-divided"]], pools, tmp_path / "faults.jsonl")
    append(survivor("reference", executions=1000), tmp_path / "mutants.jsonl")
    for _ in range(2):
        run_mutants([one], pools, tmp_path / "mutants.jsonl")

    assert len((tmp_path / "faults.jsonl").read_text().splitlines()) == 1
    assert len((tmp_path / "mutants.jsonl").read_text().splitlines()) == 2
    tried = read(tmp_path / "faults.jsonl", FaultRecord)["not-divided"]
    swept = read(tmp_path / "mutants.jsonl", MutantRecord)[one.name]
    assert (tried.detected, tried.control, swept.loads, swept.killed) == (True, True, True, True)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.slow
def test_what_is_near_comes_first_and_nothing_is_lost(pools):
    asked, *others = questions(describe(pools, "reference").capabilities)
    ordered = nearest_first(asked, WHOLE)
    near = [question.focus in WHOLE for question in ordered]

    assert near == sorted(near, reverse=True)
    assert any(near)
    assert sorted(map(repr, ordered)) == sorted(map(repr, asked))
    assert not {question.case for question in asked} & {q.case for several in others for q in several}
