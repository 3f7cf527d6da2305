"""A wrapper's exported programs run without this package, and show what the case shows: a violation, or nothing."""

import os
import subprocess
import sys

import pytest

from pipeconform.case.wrapper_case import Pass, Regroup, Step, Uneven, WrapperCase
from pipeconform.replication.export.script import WrapperReproduction, wrapper_script_of
from pipeconform.replication.trial import try_wrapper_fault, wrapper_faults
from pipeconform.sharding import Sharding
from pipeconform.wrapper import WrapOptions

PATIENCE = 300.0  # seconds; a rank on a busy machine needs long to import torch
STATIC = WrapOptions(static_graph=True)
ACCUMULATED = WrapperCase(options=STATIC, steps=(Step(passes=(Pass(sync="no"), Pass())),))
VERDICTS = {
    "failed": "failed, a requirement is not met",
    "hung": "hung",
    "crashed": "crashed",
    "error": "failed, a requirement is not met",
}
FIRST = tuple({fault.requirement: name for name, fault in reversed(wrapper_faults().items())}.values())
"""Faults, one of each requirement."""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def text_of(case, *, implementation, requirement):
    wanted = WrapperReproduction(
        case=case,
        implementation=implementation,
        wrapper="wrapper 1.0",
        found=f"{requirement} failed: a difference\nmore",
        requirements=(requirement,),
    )
    return wrapper_script_of(wanted)


@pytest.fixture
def shown(tmp_path):
    """Write a case as a program, run it where neither this package nor msgspec can be imported, and see."""
    for name in ("pipeconform", "msgspec", "hypothesis", "rich", "click"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not there')\n")

    def run(case, *, implementation, requirement, limit=PATIENCE, by=()):
        script = tmp_path / "reproduction.py"
        script.write_text(text_of(case, implementation=implementation, requirement=requirement))
        return subprocess.run(
            [sys.executable, *by, str(script), "--limit", str(limit)],
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
        )

    return run


def test_what_ddp_breaks_is_shown_with_what_is_expected(shown):
    wanted = WrapperCase(form="dataclass", options=STATIC, steps=(Step(),))
    done = shown(wanted, implementation="torch-ddp", requirement="DPW-24")

    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "DPW-24: gradient differs",
        "  rank 0, step 0, pass 0 (yes): gradient of enter.weight",
    ]
    assert "    expected  " in done.stdout
    assert "    actual    " in done.stdout
    assert done.stdout.splitlines()[-5:] == [
        "rank 0 returned, and saw a violation",
        "rank 1 returned",
        "REPRODUCED: failed, a requirement is not met",
        "what was found: DPW-24 failed: a difference",
        "more",
    ]


def test_the_text_tells_the_case_and_nothing_that_is_usual():
    text = text_of(ACCUMULATED, implementation="torch-ddp", requirement="DPW-7")

    assert text.startswith(
        '"""wrapper 1.0: DPW-7 failed: a difference\n\nRun it with  python FILE  or  torchrun'
    )
    assert "  wrapped with  static_graph\n" in text
    expression = (
        "WrapperCase(options=WrapOptions(static_graph=True), steps=(Step(passes=(Pass(sync='no'), Pass())),))"
    )
    assert f"\nCASE = {expression!r}\n" in text
    assert "\nJUDGES = {'DPW-7': 'pipeconform.replication.judge:is_right'}\n" in text
    assert "SOURCES['pipeconform.run" not in text


@pytest.mark.parametrize(
    "case",
    [
        ACCUMULATED,
        WrapperCase(ranks=3, regroup=Regroup(step=1, ranks=(0, 2)), uneven=Uneven(steps=(2, 0, 1))),
        WrapperCase(module="experts", options=WrapOptions(sharding=Sharding(expert_groups=((0,), (1,))))),
        WrapperCase(options=WrapOptions(ignored=("own",), bucket_mib=1e-6), optimizer="adam", seed=7),
    ],
)
def test_the_expression_is_the_case(case):
    text = text_of(case, implementation="torch-ddp", requirement="DPW-1")
    line = next(line for line in text.splitlines() if line.startswith("CASE = "))
    names = {}
    exec(line, names)
    known = {"WrapperCase": WrapperCase, "WrapOptions": WrapOptions, "Step": Step, "Pass": Pass}
    known |= {"Uneven": Uneven, "Regroup": Regroup, "Sharding": Sharding}

    assert eval(names["CASE"], known) == case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirement", "case", "tells"),
    [
        ("DPW-6", WrapperCase(module="ignored", options=WrapOptions(ignored=("own", "own_seen"))), "own"),
        ("DPW-7", ACCUMULATED, "INTERNAL ASSERT FAILED"),
        (
            "DPW-32",
            WrapperCase(special="penalty", options=STATIC, steps=(Step(),)),
            "gradient of enter.weight",
        ),
        ("DPW-36", WrapperCase(special="pickled", options=STATIC, steps=(Step(),) * 2), "step 1"),
    ],
)
@pytest.mark.parametrize("by", [(), TORCHRUN], ids=["python", "torchrun"])
def test_what_else_ddp_breaks_is_shown_by_python_and_by_torchrun(shown, requirement, case, tells, by):
    done = shown(case, implementation="torch-ddp", requirement=requirement, by=by)

    assert done.returncode == 1
    assert f"{requirement}: " in done.stdout
    assert tells in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("by", [(), TORCHRUN], ids=["python", "torchrun"])
def test_a_rank_that_waits_for_ever_is_not_freed_by_one_that_has_raised(shown, by):
    """DDP refuses another shape on one rank, and the other waits."""
    wanted = WrapperCase(own_shape=True, steps=(Step(),))
    done = shown(wanted, implementation="torch-ddp", requirement="DPW-3", limit=25.0, by=by)

    assert done.returncode == 1
    assert "has not ended after 25 s; its threads stand here:" in done.stderr
    assert by or "REPRODUCED: hung, no rank went on\n" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIRST, "first-rank-untold-dpw-3", "cuts-of-the-saver-dpw-35"])
def test_a_faulty_wrapper_ends_the_program_as_it_ends_a_case(shown, pools, name):
    fault = wrapper_faults()[name]
    case = try_wrapper_fault(fault, pools).case
    done = shown(case, implementation=fault.reference, requirement=fault.requirement, limit=25.0)

    assert done.returncode == 1
    assert f"REPRODUCED: {VERDICTS[fault.expected_status]}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirement", "implementation", "case"),
    [
        ("DPW-3", "reference-wrapper", WrapperCase(own_shape=True)),
        ("DPW-16", "reference-wrapper", WrapperCase(hook="bfloat16", ranks=3)),
        ("DPW-18", "torch-ddp", WrapperCase(hook="annotated")),
        ("DPW-19", "torch-ddp", WrapperCase(ranks=3, uneven=Uneven(steps=(2, 0, 1)))),
        (
            "DPW-29",
            "reference-wrapper",
            WrapperCase(
                module="single", options=WrapOptions(delayed=("leave.bias",), delayed_until="enter.weight")
            ),
        ),
        ("DPW-35", "torch-fully-shard", WrapperCase(ranks=2, loaded_by=3)),
        ("DPW-44", "torch-ddp", WrapperCase(form="reference")),
    ],
)
def test_a_right_wrapper_is_not_accused(shown, requirement, implementation, case):
    done = shown(case, implementation=implementation, requirement=requirement)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{requirement} met"
    assert "NOT REPRODUCED\n" in done.stdout


@pytest.mark.slow
def test_compiled_parts_are_compiled(shown, monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+dynamo")
    case = WrapperCase(module="blocks", compiled=True, options=WrapOptions(sharding=Sharding()))
    done = shown(case, implementation="torch-fully-shard", requirement="DPW-39")

    assert done.returncode == 0, done.stderr
    assert "torchdynamo start compiling forward" in done.stderr


@pytest.mark.slow
def test_two_worlds_are_not_started_by_torchrun(shown):
    done = shown(
        WrapperCase(ranks=2, loaded_by=1),
        implementation="torch-fully-shard",
        requirement="DPW-35",
        by=TORCHRUN,
    )

    assert done.returncode == 1
    assert "2 worlds are needed, of (2, 1) ranks: run it with python, not with torchrun" in done.stderr


@pytest.mark.slow
def test_a_program_that_cannot_run_accuses_nobody(shown):
    done = shown(WrapperCase(), implementation="not_there:Wrapper", requirement="DPW-1")

    assert done.returncode == 2
    assert "rank 0 could not run the case\n" in done.stdout
    assert "NOT RUN: a rank could not run the case\n" in done.stdout
    assert "REPRODUCED" not in done.stdout
