"""`make engines`: a gate about other people's engines that does not fail by chance, nor for want of a package."""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from pipeconform.case.case import decode_case
from pipeconform.commands.init import skeleton
from pipeconform.gate.expectations import read_expectations
from pipeconform.spec import requirements

WRONG = ("losses[k] / len(losses) if self._mean else losses[k]", "losses[k]")  # in the skeleton of an adapter


@pytest.fixture(scope="module")
def engines(pytestconfig):
    return pytestconfig.rootpath / "docs/engines"


@pytest.fixture
def judge(engines, monkeypatch):
    """The script, held to one requirement instead of all."""
    spec = importlib.util.spec_from_file_location("judge_engines", engines / "judge.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "requirements", lambda: ["FWD-1"])
    return module


def violation(status="failed", signature="a", *, confirmed=True, expected="", by=None):
    control = by and {"requirement": by}
    return {
        "status": status,
        "signature": signature,
        "confirmed": confirmed,
        "expected": expected,
        "control": control,
    }


def result(*violations, problems=None, status="failed"):
    cell = {"requirement": "FWD-1", "schedule": "GPipe", "status": status, "violations": list(violations)}
    expectations = None if problems is None else {"problems": problems}
    named = {"name": "toy", "version": "1.0"}
    return {"cells": [cell], "expectations": expectations, "implementation": named}


def test_a_complaint_is_what_is_confirmed_and_not_expected(judge):
    found = judge.complaints_of(
        result(
            violation(signature="unknown"),
            violation(signature="known", expected="toy.toml:3"),
            violation(signature="by chance", confirmed=False),
            problems=["toy.toml:9: expired on 2026-01-01: mend FWD-1"],
        )
    )

    assert found == {
        "FWD-1 under GPipe: failed 'unknown'",
        "toy.toml:9: expired on 2026-01-01: mend FWD-1",
    }


def test_a_violation_that_another_requirement_explains_is_a_complaint_unless_that_one_is_judged(judge):
    """The one that is judged has a violation of its own; the other one, nobody has asked."""
    assert judge.complaints_of(result(violation(by="FWD-1"))) == frozenset()
    assert judge.complaints_of(result(violation(by="TRN-3"))) == {"FWD-1 under GPipe: failed 'a'"}


def test_an_expectation_that_the_drawn_cases_do_not_show_is_told_and_no_complaint(judge):
    problems = ["toy.toml:5: unexpected pass: FWD-5 under 1F1B; remove '1F1B' from the entry"]
    seen = result(problems=problems, status="passed")

    assert judge.complaints_of(seen) == frozenset()
    assert judge.summary(seen) == (
        "toy 1.0: 1 of 1 requirements met (toy.toml:5: unexpected pass: FWD-5 under 1F1B)"
    )


def test_an_expectation_that_its_own_stored_case_does_not_show_is_a_complaint(judge, tmp_path):
    file = tmp_path / "toy.toml"
    file.write_text(
        '# about\nformat = 1\n\n[[expect]]\nrequirement = "FWD-4"\n\n'
        '[[expect]]\nrequirement = "FWD-5"\ncases = ["fwd-5.json"]\n'
    )
    problems = [
        "toy.toml:4: unexpected pass: FWD-4 under 1F1B; remove '1F1B' from the entry",
        "toy.toml:7: unexpected pass: FWD-5 under 1F1B; remove '1F1B' from the entry",
    ]
    seen = result(problems=problems, status="passed")

    assert judge.replayed(file) == {"toy.toml:7"}
    assert judge.complaints_of(seen, stored=judge.replayed(file)) == {problems[1]}
    assert judge.replayed(tmp_path / "none.toml") == frozenset()


def test_a_result_is_told_in_a_line(judge):
    assert judge.summary(result(status="passed")) == "toy 1.0: 1 of 1 requirements met"
    assert judge.summary(result(violation(expected="toy.toml:3"))) == (
        "toy 1.0: 0 of 1 requirements met, expected not to be: FWD-1"
    )


@pytest.mark.parametrize(
    ("runs", "good", "said"),
    [
        ([set()], True, []),
        ([{"a"}, set()], True, ["  shown once, flaky: a"]),
        ([{"a"}, {"b"}], True, ["  shown once, flaky: a", "  shown once, flaky: b"]),
        ([{"a", "b"}, {"a"}], False, ["  shown twice: a", "  shown once, flaky: b"]),
        ([None], True, []),
        ([{"a"}, None], True, ["  shown once, flaky: a"]),
    ],
)
def test_only_what_two_runs_show_fails(judge, monkeypatch, capsys, tmp_path, runs, good, said):
    attempts = iter([judge.Attempt(None if one is None else frozenset(one), "a run") for one in runs])
    monkeypatch.setattr(judge, "attempt", lambda *_, **__: next(attempts))

    assert judge.judge("toy", python=tmp_path, out=tmp_path, limit=1.0) is good
    assert capsys.readouterr().out.splitlines() == ["a run"] * len(runs) + said
    assert list(attempts) == []


@pytest.mark.slow
def test_a_wrong_engine_fails_by_what_both_real_runs_show(judge, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(judge, "requirements", lambda: ["TRN-1"])
    adapter = tmp_path / "wrong.py"
    adapter.write_text(skeleton(name="wrong.py").replace(*WRONG))

    assert not judge.judge(f"{adapter}:MyAdapter", python=sys.executable, out=tmp_path, limit=600)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3, told
    assert told[2].startswith("  shown twice: TRN-1 under GPipe: failed ")


def test_an_engine_that_takes_too_long_is_passed_over_and_leaves_no_process(judge, monkeypatch, tmp_path):
    """A child of a command that cannot be interrupted holds a lock as long as it lives."""
    monkeypatch.setattr(judge, "GRACE", 0.1)
    stubborn = f"trap '' INT; exec 9>{tmp_path}/lock; flock 9; sleep 3600 & wait"
    code, _ = judge.bounded(["bash", "-c", stubborn], log=tmp_path / "log", limit=3.0)

    assert code is None
    with (tmp_path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until nobody holds it


def test_packages_that_cannot_be_had_are_skipped_with_the_reason(engines, tmp_path):
    root = engines.parents[1]
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path / name)
    shutil.copytree(engines, tmp_path / "docs/engines")
    nothing = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        ["make", "--no-print-directory", "engines", f"PYTHON={sys.executable}"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, **nothing},
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("engines: skipped, they cannot be installed here: ERROR: ")
    assert not (tmp_path / ".venv-engines/.ready").exists()


def test_an_engine_that_cannot_be_imported_is_skipped_with_the_reason(judge, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(judge.ENGINES, "torchgpipe", "no_such_engine.pipe")

    assert judge.judge("torchgpipe", python=sys.executable, out=tmp_path, limit=600)
    assert capsys.readouterr().out == (
        "torchgpipe: skipped, it cannot be imported here: "
        "ModuleNotFoundError: No module named 'no_such_engine'\n"
    )


def test_what_the_engines_are_held_to_is_what_the_page_shows(engines):
    held = [one for one in (engines / "requirements.txt").read_text().split("\n") if one[:1].isalpha()]
    verdicts = (engines.parent / "engines.md").read_text().partition("## Verdicts, smoke profile")[2]
    rows = re.findall(r"^\| ([A-Z]+-\d+) \|", verdicts.partition("\n## ")[0], re.MULTILINE)

    assert held == rows
    assert [row.id for row in requirements() if row.id in held] == held


def test_every_expectation_is_about_something_that_is_judged(engines):
    files = sorted(engines.glob("*.toml"))
    held = (engines / "requirements.txt").read_text().split()

    assert [file.name for file in files] == [
        "colossalai.toml",
        "deepspeed.toml",
        "dualpipe.toml",
        "megatron.toml",
        "torchgpipe.toml",
    ]
    for file in files:
        assert tomllib.loads(file.read_text())["format"] == 1
        assert {entry.requirement for entry in read_expectations(file).entries} <= set(held)


@pytest.mark.slow
def test_the_whole_profile_goes_on_where_it_stopped_and_forgets_what_another_adapter_showed(
    engines, tmp_path
):
    adapter = tmp_path / "mine.py"
    adapter.write_text(skeleton(name="mine.py"))
    options = ["--requirements", "FWD-1,FWD-3,TRN-1,SCH-1", "--examples", "1", "--ranks", "2"]

    def printed(*more):
        command = [sys.executable, engines / "full.py", f"{adapter}:MyAdapter", *options, *more]
        done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done

    nothing = printed("--minutes", "0")
    assert "- " + f"{adapter}:MyAdapter, GPipe: not judged yet: FWD-1, FWD-3, TRN-1, SCH-1" in nothing.stdout
    first = printed("--minutes", "10")
    assert [text.split(": ")[0].split()[-1] for text in first.stderr.splitlines()] == [
        "FWD-1,FWD-3,TRN-1",
        "SCH-1",
    ]
    assert "| 4 of 4 |" in first.stdout
    assert "not judged yet" not in first.stdout
    again = printed("--minutes", "10")
    assert (again.stderr, again.stdout) == ("", first.stdout)
    adapter.write_text(skeleton(name="mine.py").replace(*WRONG))
    assert "not judged yet: FWD-1, FWD-3, TRN-1, SCH-1" in printed("--minutes", "0").stdout


def test_stored_cases_are_cases_and_are_named_where_they_are_used(engines):
    used = (engines.parent / "engines.md").read_text() + (engines / "deepspeed.toml").read_text()

    stored = sorted(engines.glob("*/*.json"))
    assert stored
    for file in stored:
        assert decode_case(file.read_bytes(), source=file.name).schedule in ("1F1B", "DualPipeV")
        assert file.relative_to(engines).as_posix() in used


@pytest.mark.slow
def test_releases_are_compared_and_scripts_run_on_them(engines, tmp_path):
    compare = [
        sys.executable,
        engines / "compare.py",
        "torchgpipe",
        "0.0.7",
        "--folder",
        tmp_path / "releases",
    ]
    script = tmp_path / "where.py"
    script.write_text("import torchgpipe\nprint(torchgpipe.__file__)\nraise KeyError('told')\n")

    def printed(*more):
        done = subprocess.run(
            [*compare, *more], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=900
        )
        if "pip" in done.stderr and "CalledProcessError" in done.stderr:
            pytest.skip(f"torchgpipe cannot be had: {done.stderr.splitlines()[0]}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed("--script", script) == (
        f"torchgpipe 0.0.7:\n{tmp_path}/releases/torchgpipe-0.0.7/torchgpipe/__init__.py\nKeyError: 'told'\n\n"
    )
    table = printed("--", "--profile", "smoke", "--examples", "1", "--requirements", "FWD-1,FWD-9")
    assert table.splitlines()[2:] == ["| | 0.0.7 |", "|---|---|", "| met | 1 of 1 |"]
