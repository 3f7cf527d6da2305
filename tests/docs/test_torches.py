"""`make torches`: an environment per release of torch, verdicts that are kept, and a page of what was run."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from pipeconform.supported import TESTED_TORCH

NAMES = ("environments", "judge", "page", "replays", "scripts")


@pytest.fixture
def torches(pytestconfig, monkeypatch):
    """The folder of the scripts, from which they can be imported."""
    folder = pytestconfig.rootpath / "docs/torches"
    monkeypatch.syspath_prepend(str(folder))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield folder
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def module(torches):
    return importlib.import_module


def test_every_minor_version_that_is_supported_has_an_environment(module):
    minors = [tuple(map(int, one.split(".")[:2])) for one in module("environments").RELEASES]
    (major, low), (_, below) = TESTED_TORCH

    assert minors == [(major, minor) for minor in range(low, below)]


def test_what_was_downloaded_is_read_from_pips_words(module):
    log = (
        "Collecting torch==2.15.0\n  Downloading torch-2.15.0-cp311.whl (539.1 MB)\n"
        "Collecting x\n  Downloading x-1-py3-none-any.whl (500 kB)\nProcessing /wheels/y-1.whl\n"
    )

    assert module("environments")._downloaded(log) == 539.6


def test_a_result_that_is_there_is_kept_and_one_of_a_cut_off_run_is_not(module, tmp_path):
    judge = module("judge")
    cells = [
        {"requirement": "TRN-4", "status": "failed"},
        {"requirement": "TRN-4", "status": "hung"},
        {"requirement": "TRN-4", "status": "failed"},
        {"requirement": "FWD-1", "status": "passed"},
    ]
    (tmp_path / "result.json").write_text(json.dumps({"run": {"complete": True}, "cells": cells}))
    how = {"profile": "smoke", "python": tmp_path / "none", "out": tmp_path, "limit": 5, "again": False}

    assert judge.judged("torch", **how) == ("torch: TRN-4 failed (0 s)", True)
    assert judge.judged("reference", **how)[1] is False
    (tmp_path / "result.json").write_text(json.dumps({"run": {"complete": False}, "cells": cells}))
    with pytest.raises(FileNotFoundError):
        judge.judged("torch", **how)


def test_rows_that_were_judged_alone_take_the_place_of_those_of_a_whole_result(module, tmp_path):
    page = module("page")

    def written(folder, day, cells, selection=None):
        (tmp_path / folder).mkdir(parents=True)
        result = {
            "run": {"complete": True, "selection": selection},
            "cells": [
                {"requirement": name, "schedule": "GPipe", "status": status, "reason": "", "violations": []}
                for name, status in cells.items()
            ],
            "environment": {"torch": "2.13.0", "python": "3.11"},
            "standard_version": "0.1",
            "created": f"{day}T10:00",
            "totals": {"executions": 1},
            "implementation": {"capabilities": None},
        }
        (tmp_path / folder / "result.json").write_text(json.dumps(result))

    met = {"FWD-1": "passed", "FWD-2": "passed", "TRN-4": "failed"}
    written("2.13.0/torch-core", "2026-11-25", met)
    # what another requirement needs is judged, too, by fewer cases
    few = {"FWD-1": "blocked", "TRN-4": "passed", "TRN-28": "failed"}
    written("2.13.0/some/torch-core", "2026-11-27", few, "TRN-4,TRN-28")
    (_, one), *others = page.collected({}, results=tmp_path, made=tmp_path)["torch core"].items()

    assert not others
    assert {name: (row["met"], row["blocked"]) for name, row in one["rows"].items()} == {
        "FWD-1": (1, 0),
        "FWD-2": (1, 0),
        "TRN-4": (1, 0),
        "TRN-28": (0, 0),
    }
    assert "Judged alone, later than the others, on 2026-11-27: TRN 4, 28." in [
        *page._table("torch core", {"2.13.0": one})
    ]
    # another release, which was not judged again, has only what the same cases gave
    met_before = {"rows": {name: {"wrong": {}, "met": 1, "blocked": 0} for name in met}}
    (_, before), (_, again) = page.comparable({"2.12.1": met_before, "2.13.0": one}).items()
    assert before["rows"].keys() == {"FWD-1", "FWD-2"}
    assert again == one
    judge, where = module("judge"), tmp_path / "2.13.0/some/torch-core/result.json"
    assert judge.complete(where)
    assert judge.complete(where, "TRN-4,TRN-28")
    assert not judge.complete(where, "TRN-4")


def test_what_is_not_kept_is_run_on_each_installed_release(module, monkeypatch, tmp_path, capsys):
    environments, kept = module("environments"), tmp_path / "kept.json"
    (tmp_path / "2.13.0").mkdir()
    (tmp_path / "2.13.0/ready.json").touch()
    kept.write_text(json.dumps({"a": {"2.12.1": "met"}, "b": {"2.13.0": "met"}}))
    files, ran = [tmp_path / name for name in ("a.py", "b.py", "c.py")], []

    def run(file, *, python):
        ran.append((file.stem, python))
        return f"{file.stem} is\nnew"

    def on_each(*options):
        arguments = ["script", "2.12.1", "2.13.0", "--environments", str(tmp_path), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        environments.run_on_each(
            files, doc="What it does.", kept=kept, run=run, is_result=lambda shown: not shown.startswith("c")
        )
        return [name for name, _ in ran]

    assert on_each() == ["a", "c"]
    assert ran[0][1] == tmp_path.resolve() / "2.13.0/bin/python"
    assert capsys.readouterr().out == (
        "2.12.1: skipped, no environment; make torches installs it\n2.13.0 a: a is\n2.13.0 c: c is\n"
    )
    found = {"a": {"2.12.1": "met", "2.13.0": "a is\nnew"}, "b": {"2.13.0": "met"}}
    assert environments.stored(kept) == found
    assert on_each("--only", "b", "--again") == ["a", "c", "b"]
    assert environments.stored(kept) == found | {"b": {"2.13.0": "b is\nnew"}}


def test_the_page_is_made_from_what_is_stored(module, pytestconfig):
    assert module("page").page() == (pytestconfig.rootpath / "docs/releases.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"2.9.1": True, "2.10.0": False}, "mended in 2.10"),
        ({"2.10.0": False, "2.9.1": True, "2.11.0": True}, "mended in 2.10, broken in 2.11"),
        ({"2.9.1": True, "2.10.0": None, "2.11.0": True}, "always"),
    ],
)
def test_a_change_is_found_between_the_releases_that_judged_it(module, states, said):
    verdicts = {
        release: {
            "rows": {
                "TRN-1": {
                    "wrong": {"failed": ["GPipe"]} if wrong else {},
                    "met": int(wrong is False),
                    "blocked": int(wrong is None),
                }
            }
        }
        for release, wrong in states.items()
    }

    assert module("page").story(verdicts, "TRN-1") == said


def test_every_change_was_shown_by_its_case_on_both_sides(module, torches):
    releases = list(module("environments").RELEASES)
    shown = module("replays").stored()
    for one in tomllib.loads((torches / "causes.toml").read_text("utf-8"))["cause"]:
        assert (torches / "cases" / f"{one['case']}.json").exists()
        at, case = releases.index(one["release"]), shown[one["case"]]
        before, after = case[releases[at - 1]], case[releases[at]]

        assert (before == "met", after == "met") == (one["change"] == "broken", one["change"] == "mended")


def test_every_case_that_is_stored_is_of_use(module, torches):
    causes = tomllib.loads((torches / "causes.toml").read_text("utf-8"))["cause"]

    assert {path.stem for path in (torches / "cases").glob("*.json")} == {one["case"] for one in causes}


# ------------------------------------------------------------------ with the environments that make torches made


def _environments(torches):
    """The environments that are there: in PIPECONFORM_TORCHES, or where `make torches` puts them."""
    return os.environ.get("PIPECONFORM_TORCHES") or torches.parents[1] / ".venv-torches"


_ASKED = """
import re
from importlib.metadata import requires, version
from packaging.requirements import Requirement
pin = next(one for one in map(Requirement, requires("pipeconform")) if one.name == "torch")
print("pin", pin.specifier.contains(version("torch").partition("+")[0]))
from pipeconform.ranks.recording.kernels import unseen
print("unseen", *unseen())
from pipeconform.adapters.torch_pipelining import TorchPipelining
print("elsewhere", *(re.match(".+?:", one)[0] for one in TorchPipelining().describe().capabilities.elsewhere))
"""
_BEFORE_2_13 = ("2.9.1", "2.10.0", "2.11.0", "2.12.1")
_LACKING = {
    **dict.fromkeys(_BEFORE_2_13, "keyword arguments of the loss:"),
    **dict.fromkeys(
        _BEFORE_2_13[:2],
        "keyword arguments of the loss: tensor parallelism: fewer microbatches than stages:",
    ),
    "2.11.0": "keyword arguments of the loss: tensor parallelism:",
}


def test_every_script_that_shows_something_else_has_its_explanation_on_the_page(module, torches):
    page, scripts = module("page"), module("scripts")
    kept = json.loads(scripts.KEPT.read_text())
    told = tomllib.loads((torches / "causes.toml").read_text())["script"]

    others = {name for name, shown in kept.items() if "differs" in map(page._shown, shown.values())}
    assert others <= told.keys() <= kept.keys()
    assert all(
        isinstance(text, str) and text in (torches.parent / "releases.md").read_text()
        for text in told.values()
    )


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.14.1", "2.15.0"])
def test_a_release_is_seen_and_claimed_as_far_as_it_goes(module, torches, release, tmp_path):
    environments = module("environments")
    folder = environments.ROOT / _environments(torches) / release
    if not (folder / "ready.json").exists():
        pytest.skip(f"no environment for torch {release} in {folder.parent}; make torches makes it")
    command = [str(environments.interpreter(folder)), "-W", "ignore"]
    done = subprocess.run(
        [*command, "-c", _ASKED], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300
    )
    assert done.stdout.splitlines() == [
        "pin True",
        "unseen",
        f"elsewhere {_LACKING.get(release, '')}".rstrip(),
    ], done.stderr

    run = [*command, "-m", "pipeconform", "run", "--impl", "torch", "--profile", "smoke", "--quiet"]
    asked = ["--requirements", "FWD-1,TRN-1,COM-5", "--schedules", "GPipe", "--examples", "3"]
    if release == "2.9.1":  # two ranks abort in its warm-up: docs/releases.md
        asked = ["--requirements", "FWD-1,TRN-1,TRN-2", "--schedules", "GPipe", "--ranks", "1"]
    done = subprocess.run(
        [*run, *asked], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600
    )
    assert re.search(r"pipelining 2\.\d+\.\d+\S* meets all 3 judged requirements", done.stdout), done.stdout
