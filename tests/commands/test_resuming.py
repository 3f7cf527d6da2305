"""What ``run --resume`` and ``status`` say."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from pipeconform.session.journal import Journal
from pipeconform.session.standing import standing_of
from tests.facts import tells

ASKED = ("--requirements", "FWD-1,FWD-3", "--schedules", "GPipe", "--ranks", "1-2", "--examples", "2")
RUN = ("run", "--impl", "mine.py:Mine", "--profile", "smoke", *ASKED, "--out", "out")
ADAPTER = """
from pipeconform.reference_impl.adapter import ReferenceAdapter


class Mine(ReferenceAdapter):
    pass
"""
LAST = "2 of 2 cells judged: 2 ok"


@pytest.fixture
def ended(typed, tmp_path):
    """A run that was killed when one of its two cells was judged."""
    (tmp_path / "mine.py").write_text(ADAPTER)
    code, out, err = typed(*RUN)
    assert code == 0, out + err
    (cells,) = (tmp_path / "out/.run").glob("cells.*")
    cells.write_text(cells.read_text().splitlines(True)[0])
    (tmp_path / "out/.run/ended.json").unlink()
    begun = tmp_path / "out/.run/begun.json"
    begun.write_text(json.dumps({**json.loads(begun.read_text()), "started": 1}))
    return tmp_path / "out"


def test_it_goes_on_with_the_settings_of_the_run(typed, ended):
    code, out, err = typed("run", "--resume", "out")

    assert code == 0, out + err
    assert "resuming the run in out: 1 of 2 cells judged before" in err
    result = json.loads((ended / "result.json").read_text())
    assert [cell["requirement"] for cell in result["cells"]] == ["FWD-1", "FWD-3"]
    assert typed("status", "out")[1].splitlines()[1] == LAST


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--seed", "3"), "--seed 3 instead of 0"),
        (("--ranks", "1-3"), "--ranks 1-3 instead of 1-2"),
        (("--requirements", "FWD-1"), "--requirements FWD-1 instead of FWD-1,FWD-3"),
        (("-k", "FWD"), "-k FWD instead of none"),
        (("--impl", "torch"), "--impl torch instead of mine.py:Mine"),
    ],
)
def test_other_settings_are_refused(typed, ended, more, said):
    before = sorted(path.read_bytes() for path in (ended / ".run").iterdir())
    code, _, err = typed("run", "--resume", "out", *more)

    assert code == 2
    assert "was begun with other settings" in err
    assert said in err
    assert sorted(path.read_bytes() for path in (ended / ".run").iterdir()) == before


def test_the_same_settings_may_be_repeated_and_others_that_change_no_verdict_given(typed, ended):
    code, out, err = typed(*RUN[:-2], "--resume", "out", "--quiet")

    assert code == 0, out + err
    assert "1 of 2 cells judged before" in err


def test_an_adapter_that_has_changed_is_refused(typed, ended, tmp_path):
    (tmp_path / "mine.py").write_text(ADAPTER + "\n# better\n")
    code, _, err = typed("run", "--resume", "out")

    assert code == 2
    assert "something has changed since it began: the implementation's source digest" in err


def test_an_expectations_file_that_has_changed_is_refused(typed, tmp_path):
    (tmp_path / "mine.py").write_text(ADAPTER)
    (tmp_path / "known.toml").write_text("format = 1\n")
    code, out, err = typed(*RUN, "--expectations", "known.toml")
    assert code == 0, out + err
    (tmp_path / "out/.run/ended.json").unlink()
    (tmp_path / "known.toml").write_text("format = 1 # another\n")
    code, _, err = typed("run", "--resume", "out")

    assert code == 2
    assert "the file of --expectations" in err


WRONG = """
from pipeconform.reference_impl.faults.scale import NotDivided


class Mine(NotDivided):
    pass
"""


@pytest.mark.parametrize(("source", "own"), [(ADAPTER, 0), (WRONG, 1)])
def test_a_complete_run_ends_again_as_it_ended(typed, tmp_path, source, own):
    """A job that is requeued when its run was complete gets the run's exit code, and judges nothing."""
    (tmp_path / "mine.py").write_text(source)
    asked = ("run", "--impl", "mine.py:Mine", "--profile", "smoke", "--requirements", "FWD-1,TRN-3")
    sizes = ("--schedules", "GPipe", "--ranks", "1-2", "--examples", "2")
    code, out, err = typed(*asked, *sizes, "--out", "out")
    assert code == own, out + err
    first = json.loads((tmp_path / "out/result.json").read_text())
    code, out, err = typed("run", "--resume", "out")

    assert code == own, out + err
    assert "resuming the run in out: 2 of 2 cells judged before" in err
    again = json.loads((tmp_path / "out/result.json").read_text())
    assert again["cells"] == first["cells"]
    assert again["run"]["complete"]
    assert len(standing_of(Journal.of(tmp_path / "out")).cells) == 2


def test_a_folder_without_a_run_begins_one_if_there_is_an_implementation(typed, tmp_path):
    (tmp_path / "mine.py").write_text(ADAPTER)
    code, _, err = typed("run", "--resume", "out")
    assert code == 2
    assert "no run to resume in out; with --impl" in err

    code, out, err = typed(*RUN[:-2], "--resume", "out")
    assert code == 0, out + err
    assert (tmp_path / "out/result.json").is_file()


def test_two_folders_are_refused(typed):
    code, _, err = typed("run", "--resume", "a", "--out", "b")

    assert code == 2
    assert "leave --out b out" in err


def test_a_run_without_an_implementation_is_refused(typed):
    code, _, err = typed("run")

    assert code == 2
    assert "Missing option '--impl'" in err


def test_what_was_to_be_judged_again_is_judged_after_a_resumption(typed, ended):
    """--last-failed chooses others once the run has judged some of them."""
    planned = ended / ".run/plan.json"
    planned.write_text(json.dumps(json.loads(planned.read_text())[:1]))
    code, _, err = typed("run", "--resume", "out")

    assert code == 0, err
    assert len(json.loads((ended / "result.json").read_text())["cells"]) == 1


def test_status_reads_and_changes_nothing(typed, ended):
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in ended.rglob("*") if path.is_file()
    }
    code, out, _ = typed("status", "out")

    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("mine.py:Mine in out: killed after ")
    assert tells(lines[1], "1 of 2 cells", "1 ok")
    assert "waiting: 1 under GPipe" in lines
    assert lines[-1].endswith(" pipeconform run --resume out")
    after = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in ended.rglob("*") if path.is_file()
    }
    assert after == before


def test_status_says_what_is_wrong_so_far(typed, tmp_path):
    wrong = "pipeconform.reference_impl.faults.scale:NotDivided"
    asked = ("--requirements", "TRN-3", "--schedules", "GPipe", "--ranks", "1-2", "--examples", "2")
    assert typed("run", "--impl", wrong, "--profile", "smoke", *asked, "--out", "out")[0] == 1
    _, out, _ = typed("status", "out")

    assert "  TRN-3 under GPipe: failed: " in out
    assert "time: " in out
    assert "longest: TRN-3 under GPipe" in out


def test_status_as_json_has_the_cells(typed, ended):
    code, out, _ = typed("status", "out", "--json")

    assert code == 0
    found = json.loads(out)
    assert (found["state"], found["planned"], len(found["cells"])) == ("ended", 2, 1)


def test_status_of_a_folder_without_a_run_is_refused(typed, tmp_path):
    (tmp_path / "out").mkdir()
    code, _, err = typed("status", "out")

    assert code == 2
    assert "no run in out" in err


def test_a_run_on_another_host_is_silent_only_after_a_while(ended):
    journal = Journal.of(ended)
    begun = journal.begun()
    (ended / ".run/begun.json").write_text(
        json.dumps({"id": begun.id, "host": "elsewhere", "pid": 1, "started": 5, "at": begun.at})
    )
    last = journal.last_sign()

    assert standing_of(journal, now=last + 60).state == "running"
    assert standing_of(journal, now=last + 4000).state == "silent"
    assert standing_of(journal, now=last + 4000).seconds == pytest.approx(last - begun.at, abs=0.2)


def test_this_process_is_seen_to_run(ended):
    from pipeconform.ranks.process_tree import started_at

    journal = Journal.of(ended)
    begun = json.loads((ended / ".run/begun.json").read_text())
    (ended / ".run/begun.json").write_text(
        json.dumps({**begun, "pid": os.getpid(), "started": started_at(os.getpid())})
    )

    assert standing_of(journal).state == "running"
    shutil.rmtree(ended / ".run")
    assert standing_of(journal) is None
