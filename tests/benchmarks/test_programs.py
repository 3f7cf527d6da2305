"""What programs and replay said, as it is kept and shown."""

from benchmarks.lines import keep, kept
from benchmarks.programs.order import Waiting, taking_turns
from benchmarks.programs.outcomes import Outcome
from benchmarks.programs.page import page


def outcome(requirement, *verdicts, implementation="pipeconform.reference_impl.faults.scale:NotDivided"):
    replay, program, mended = verdicts or ("reproduced", "reproduced", "met")
    return Outcome(
        implementation=implementation,
        requirement=requirement,
        status="failed",
        signature="gradient value",
        replay=replay,
        program=program,
        mended=mended,
    )


def test_only_three_right_verdicts_are_as_they_should_be():
    assert outcome("TRN-1").as_it_should
    for verdicts in (
        ("met", "met", "met"),
        ("reproduced", "another", "met"),
        ("reproduced", "reproduced", "reproduced"),
    ):
        assert not outcome("TRN-1", *verdicts).as_it_should


def test_what_is_kept_is_read_again_and_shown_with_what_differs_first(tmp_path):
    outcomes = {
        "not-divided": outcome("TRN-1"),
        "raises": outcome("FWD-2", "reproduced", "another", "met"),
        "smoke TRN-4:GPipe:default:5872": outcome("TRN-4", implementation="torch"),
    }
    keep(outcomes, tmp_path / "kept.json")
    text = page(kept(tmp_path / "kept.json", Outcome), ["FWD-1", "FWD-2", "TRN-1"])

    assert kept(tmp_path / "kept.json", Outcome) == outcomes
    assert kept(tmp_path / "none.json", Outcome) == {}
    assert "| requirements with a program | 2 of 3 |" in text
    assert "| without | FWD-1 |" in text
    assert "| adapters of other engines | `torch` |" in text
    assert "| the program's verdict is that of `replay` | 2 of 3 |" in text
    rows = [line for line in text.splitlines() if "gradient value" in line]
    assert rows[0] == ("| FWD-2 | raises | failed: gradient value | **reproduced** | **another** | **met** |")
    assert len(rows) == 3


def waiting(name, requirement, status="failed"):
    return Waiting(name=name, requirement=requirement, status=status, look=lambda: None)


def test_whoever_stops_early_has_seen_every_kind():
    several = [waiting(f"wrong {n}", f"FWD-{n}") for n in range(9)]
    several += [waiting("raises", "FWD-1", "error"), waiting("late", "DPC-1"), waiting("later", "DPC-2")]
    turns = [one.name for one in taking_turns(several, seed=1)]

    assert sorted(turns) == sorted(one.name for one in several)
    assert {name.split()[0] for name in turns[:3]} in (
        {"wrong", "raises", "late"},
        {"wrong", "raises", "later"},
    )
    assert turns == [one.name for one in taking_turns(several, seed=1)]
    assert any(turns != [one.name for one in taking_turns(several, seed=seed)] for seed in range(2, 5))
