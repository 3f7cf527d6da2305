"""Exported programs run without this package and show the defect, for every way in which a case can end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Load, LossSpec, Model, Optimize, Sgd, Stage, Train, World, Zero
from pipeconform.case.replicas import Replicas
from pipeconform.errors import UsageError
from pipeconform.export.script import Reproduction, script_of

PATIENCE = 300.0  # seconds; a rank on a busy machine needs long to import torch
FAULTS = "pipeconform.reference_impl.faults"
WAITS = f"{Path(__file__).with_name('waiting_torch.py')}:Waits"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def case(*program, schedule="GPipe", world=None, stages=2, kind=blocks.Linear, **changes):
    return Case(
        model=Model(width=3, stages=(Stage(blocks=(kind(),)),) * stages),
        schedule=schedule,
        world=world or World(size=2, pipeline_ranks=(0, 1)),
        program=program or (Train(batch_size=4, num_microbatches=2),),
        **changes,
    )


@pytest.fixture
def shown(tmp_path):
    """Write a case as a program, run it where neither this package nor msgspec can be imported, and see."""
    for name in ("pipeconform", "msgspec", "hypothesis", "rich", "click"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not there')\n")

    def run(
        wanted,
        *,
        implementation,
        limit=PATIENCE,
        found="FWD-1 failed: a difference\nmore",
        by=(),
        settings=(),
    ):
        script = tmp_path / "reproduction.py"
        script.write_text(
            script_of(
                Reproduction(
                    name="it",
                    case=wanted,
                    implementation=implementation,
                    engine="engine 1.0",
                    found=found,
                    settings=dict(settings),
                )
            )
        )
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


def test_torchs_rescaled_gradients_are_shown_by_a_program_of_their_own(shown):
    wanted = case(Train(batch_size=4, num_microbatches=2), Train(batch_size=4, num_microbatches=2))
    done = shown(wanted, implementation="torch")

    assert done.returncode == 1, done.stderr
    assert "rank 0, step 1, stage 0, gradient of blocks.0." in done.stdout
    assert "step 0," not in done.stdout
    assert done.stdout.splitlines()[-5:] == [
        "rank 0 returned, and saw wrong values",
        "rank 1 returned",
        "REPRODUCED: failed, values are wrong",
        "what was found: FWD-1 failed: a difference",
        "more",
    ]


@pytest.mark.slow
def test_a_right_implementation_is_not_accused(shown):
    program = (
        Eval(batch_size=3, num_microbatches=3),
        Train(batch_size=4, num_microbatches=2),
        Optimize(),
        Zero(),
        Train(batch_size=4, num_microbatches=2),
        Load(),
        Train(batch_size=2, num_microbatches=1),
    )
    wanted = case(
        *program,
        schedule="ZB-H1",
        optimizer=Sgd(lr=0.1, momentum=0.9),
        loss=LossSpec(reduction="sum"),
        world=World(size=3, pipeline_ranks=(0, 2)),
    )
    done = shown(wanted, implementation="reference")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:5] == [
        "every value is that of the unpipelined model",
        "rank 0 returned",
        "rank 1 returned",
        "rank 2 returned",
        "NOT REPRODUCED",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "verdict", "end"),
    [
        ("disasters:Raises", "error, a rank raised", "rank 1 raised an error"),
        ("disasters:Exits", "crashed, a rank died", "rank 1 left with exit code 13"),
        ("scale:NotDivided", "failed, values are wrong", "rank 0 returned, and saw wrong values"),
    ],
)
def test_a_fault_ends_the_program_as_it_ends_a_case(shown, fault, verdict, end):
    done = shown(case(schedule="1F1B"), implementation=f"{FAULTS}.{fault}")

    assert done.returncode == 1
    assert f"REPRODUCED: {verdict}\n" in done.stdout
    assert end in done.stdout.splitlines()


@pytest.mark.slow
def test_a_hang_ends_with_the_stacks_of_all_threads(shown):
    done = shown(case(schedule="1F1B"), implementation=f"{FAULTS}.disasters:Sleeps", limit=25.0)

    assert done.returncode == 1
    assert "REPRODUCED: hung, no rank went on\n" in done.stdout
    assert "has not ended after 25 s; its threads stand here:" in done.stderr
    assert "faults.disasters, carried by reproduction.py" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("by", [(), TORCHRUN], ids=["python", "torchrun"])
def test_a_hang_of_torch_is_shown(shown, by):
    done = shown(case(), implementation=WAITS, limit=40.0, by=by)

    assert done.returncode == 1
    assert done.stderr.count("has not ended after 40 s; its threads stand here:") >= 1
    assert "torch/distributed/pipelining/schedules.py" in done.stderr
    if by:
        assert "exitcode  : 124" in done.stderr
    else:
        assert "REPRODUCED: hung, no rank went on\n" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("by", [(), TORCHRUN], ids=["python", "torchrun"])
def test_a_crash_of_torch_is_shown(shown, by):
    """Stages laid out otherwise than the schedule lays them out: a rank takes numbers for a pickle's length."""
    world = World(size=2, pipeline_ranks=(0, 1), placement="v")
    wanted = case(
        Train(batch_size=8, num_microbatches=4),
        schedule="LoopedBFS",
        stages=4,
        stages_per_rank=2,
        world=world,
    )
    done = shown(wanted, implementation="torch", by=by)

    assert done.returncode == 1
    if by:
        assert "Signal 6 (SIGABRT)" in done.stderr
    else:
        assert "rank 1 died by signal 6\nREPRODUCED: crashed, a rank died\n" in done.stdout


@pytest.mark.slow
def test_under_torchrun_right_values_end_well_and_wrong_ones_do_not(shown):
    train = Train(batch_size=4, num_microbatches=2)
    right, wrong = (
        shown(case(*program), implementation="torch", by=TORCHRUN) for program in ((train,), (train, train))
    )

    assert right.returncode == 0, right.stderr
    assert "every value is that of the unpipelined model" in right.stdout
    assert wrong.returncode == 1
    assert "rank 0, step 1, stage 0, gradient of blocks.0." in wrong.stdout


@pytest.mark.slow
def test_the_settings_of_a_variant_are_there_before_torch_is(shown):
    settings = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "INFO"}
    done = shown(case(), implementation="torch", settings=settings)

    assert done.returncode == 0, done.stderr
    assert "ProcessGroupWrapper" in done.stderr or "DETAIL" in done.stderr


REPLICATED = World(size=2, pipeline_ranks=(0,), replicas=Replicas(others=((1,),)))
TRAINED = Train(batch_size=4, num_microbatches=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"hook": True}, {"wrapper": "fully_shard"}], ids=["ddp", "hook", "sharded"]
)
def test_replicas_are_made_and_a_right_implementation_is_not_accused(shown, options):
    world = structs.replace(REPLICATED, replicas=Replicas(others=((1,),), **options))
    program = (TRAINED, Optimize(), Zero(), TRAINED)
    done = shown(
        case(*program, world=world, stages=1, optimizer=Sgd(lr=0.125)),
        implementation="reference",
        by=TORCHRUN,
    )

    assert done.returncode == 0, done.stderr
    assert "every value is that of the unpipelined model" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("by", [(), TORCHRUN], ids=["python", "torchrun"])
def test_replicas_whose_gradients_are_not_the_mean_are_shown(shown, by):
    done = shown(
        case(TRAINED, world=REPLICATED, stages=1),
        implementation=f"{FAULTS}.replicas:SummedOverReplicas",
        by=by,
        found="DPC-1 failed: gradient value",
    )

    assert done.returncode == 1, done.stderr
    assert "rank 0, step 0, stage 0, gradient of blocks.0.weight: element" in done.stdout
    assert "rank 1, step 0, stage 0, gradient of blocks.0.weight: element" in done.stdout
    assert "output" not in done.stdout.replace("what was found", "")


@pytest.mark.slow
def test_replicas_of_a_pipeline_over_several_ranks_are_shown(shown):
    world = World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),)))
    done = shown(case(TRAINED, TRAINED, world=world, schedule="1F1B"), implementation="reference")

    assert done.returncode == 0, done.stderr
    assert "rank 3 returned" in done.stdout


@pytest.mark.slow
def test_outputs_that_are_merged_by_their_own_rules_are_compared(shown):
    model = structs.replace(case().model, merged=("turned", "whole", "total"))
    right, wrong = (
        shown(structs.replace(case(schedule="1F1B"), model=model), implementation=one)
        for one in ("reference", f"{FAULTS}.callers:MergedBackwards")
    )

    assert right.returncode == 0, right.stderr
    assert wrong.returncode == 1
    assert "rank 1, step 0, output[1]: element" in wrong.stdout


def test_what_a_program_cannot_show_is_refused_with_the_reason():
    def refused(wanted):
        with pytest.raises(UsageError) as error:
            script_of(Reproduction(name="X-1", case=wanted, implementation="torch", engine="", found="found"))
        return str(error.value)

    assert "its stages compute over several ranks" in refused(
        case(kind=blocks.SyncedNorm, world=REPLICATED, stages=1)
    )
    assert refused(case(kind=blocks.Dropout)) == (
        "X-1 cannot be exported: its dropout masks are drawn by the ranks, and only the harness can replay them"
    )


def test_the_program_begins_with_what_a_reader_must_know():
    text = script_of(
        Reproduction(
            name="it", case=case(), implementation="torch", engine="torch 2.13", found="It is wrong."
        )
    )
    head = text.partition("from __future__")[0]

    assert head.startswith('"""torch 2.13: It is wrong.\n\nRun it with  python FILE')
    assert "  pipeline  GPipe, p = 2, v = 1" in head
    compile(text, "reproduction.py", "exec")
    assert "pipeconform.schedule.table" not in text  # nothing that only the reference needs
    assert len(text.splitlines()) < 6000
