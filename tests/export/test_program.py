"""An exported program says of its case what `replay` says, and accuses no engine of its own mistakes."""

from __future__ import annotations

import pytest
from msgspec import structs
from pipeconform.reference_impl.faults import FAULTS, Fault

from benchmarks.programs.asked import honest, of_fault, question, runner
from pipeconform.campaign.again import Sought, judge_again
from pipeconform.campaign.trial import wrapper_faults
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.export.program import answered
from pipeconform.export.question import Question
from pipeconform.ranks.pools import Pools
from pipeconform.spec.wrappers import any_requirement
from pipeconform.wrapper import WrapOptions
from tests import tenths
from tests.export.conftest import Shown

HERE = "pipeconform.reference_impl.faults"
REFERENCE = "pipeconform.reference_impl.adapter:ReferenceAdapter"
CASE = Case(
    model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="1F1B",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=4, num_microbatches=2),),
)
OF_TORCH = structs.replace(
    CASE, schedule="GPipe", model=structs.replace(CASE.model, input_requires_grad=True)
)
DIVIDED_WRONGLY = Sought(requirement="TRN-1", status="failed", signature="gradient value")


def shown_by(fault: Fault, pools: Pools) -> Question:
    """What `replay` is asked about a fault."""
    asked = of_fault(fault, pools)
    if asked is None:
        pytest.fail(f"{fault.name} was not caught")
    return asked.question


# What is said, with warm ranks.


def test_input_gradients_that_an_engine_does_not_scale_are_no_violation(pools: Pools) -> None:
    """TRN-7, of torch's GPipe: a second oracle said once that they are wrong."""
    assert answered(
        question(OF_TORCH, Sought(requirement="TRN-7", status="failed", signature="gradient value")),
        runner(pools, "torch"),
    ) == (["NOT REPRODUCED: TRN-7 met"], 0)


@pytest.mark.parametrize(
    ("where", "requirement", "status", "signature"),
    [
        ("scale:NotDivided", "TRN-1", "failed", "gradient value"),
        ("disasters:Raises", "FWD-1", "error", "raised RuntimeError: "),
        ("disasters:Exits", "FWD-1", "crashed", "died: exit code 13"),
        ("disasters:Sleeps", "FWD-1", "hung", "hang"),
    ],
)
def test_every_way_to_end_is_reproduced_and_none_by_what_was_mended(
    pools: Pools, where: str, requirement: str, status: str, signature: str
) -> None:
    one = runner(pools, f"{HERE}.{where}")
    row = any_requirement(requirement)
    (outcome, *_) = judge_again(CASE, (row,), one)[row.id]
    sought = Sought(requirement=requirement, status=status, signature=outcome.finding.kind)
    lines, code = answered(question(CASE, sought), one)
    mended = answered(question(CASE, sought), runner(pools, REFERENCE))

    assert outcome.finding.kind.startswith(signature)
    assert (lines[0], code) == ("REPRODUCED:", 1)
    assert lines[1].startswith(f"{requirement} {status}: {signature}")
    assert mended == ([f"NOT REPRODUCED: {requirement} met"], 0)


def test_an_exception_in_the_place_of_wrong_values_does_not_reproduce_them(pools: Pools) -> None:
    lines, code = answered(question(CASE, DIVIDED_WRONGLY), runner(pools, f"{HERE}.disasters:Raises"))

    assert code == 4
    assert lines[0] == (
        "NOT REPRODUCED (TRN-1 failed: gradient value), but the case shows another violation:"
    )
    assert lines[1].startswith("TRN-1 error: raised RuntimeError")


@pytest.mark.parametrize("name", ["SPL-4", "SCH-4", "SCH-8", "LIF-3", "LIF-7", "DPC-6", "DPC-9"])
def test_what_only_the_harness_sees_is_reproduced_too(pools: Pools, name: str) -> None:
    fault = next(one for one in FAULTS.values() if one.requirement == name)
    asked = shown_by(fault, pools)

    # a reduction that nobody waits for ends in time now and then, however late a replica is
    assert 1 in (answered(asked, runner(pools, fault.reference))[1] for _ in range(4))
    assert answered(asked, runner(pools, honest(fault)))[1] == 0


# Programs as files, where this package is not.


@tenths.long
@tenths.long
def test_a_program_reproduces_what_is_wrong_and_its_text_is_the_adapter(shown: Shown) -> None:
    wrong = shown(question(CASE, DIVIDED_WRONGLY), implementation=f"{HERE}.scale:NotDivided")
    mended = shown(arguments=("--impl", REFERENCE))

    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert wrong.stdout.splitlines()[1:3] == [
        "REPRODUCED:",
        "TRN-1 failed: gradient value (step 0, rank 0, stage 0)",
    ]
    assert (mended.returncode, mended.stderr) == (0, "")
    assert mended.stdout.splitlines()[-1] == "NOT REPRODUCED: TRN-1 met"


@pytest.mark.slow
def test_what_a_wrapper_breaks_is_reproduced(shown: Shown) -> None:
    case = WrapperCase(form="dataclass", options=WrapOptions(static_graph=True), steps=(Step(),))
    sought = Sought(requirement="DPW-24", status="failed", signature="gradient differs")
    done = shown(question(case, sought), implementation="torch-ddp")

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[1:3] == [
        "REPRODUCED:",
        "DPW-24 failed: gradient differs (step 0, rank 0)",
    ]


@tenths.long
def test_a_mistake_in_the_program_s_own_text_is_inconclusive(shown: Shown) -> None:
    def broken(text: str) -> str:
        return text.replace("@breaks(", "undefined_name\n\n\n@breaks(", 1)

    done = shown(question(CASE, DIVIDED_WRONGLY), implementation=f"{HERE}.scale:NotDivided", change=broken)

    assert done.returncode == 3
    assert "INCONCLUSIVE: " in done.stdout
    assert "NameError: name 'undefined_name' is not defined" in done.stdout
    assert "REPRODUCED" not in done.stdout


@pytest.mark.slow
def test_devices_that_a_machine_has_not_are_inconclusive(shown: Shown) -> None:
    asked = structs.replace(question(CASE, DIVIDED_WRONGLY), device="xpu")
    done = shown(asked, implementation="reference")

    assert done.returncode == 3
    assert "INCONCLUSIVE: " in done.stdout


def test_an_archive_that_is_not_there_is_inconclusive(shown: Shown, tmp_path) -> None:
    shown(question(CASE, DIVIDED_WRONGLY), implementation="reference", arguments=("--help",))
    (tmp_path / "shown.zip").unlink()
    done = shown()

    assert done.returncode == 3
    assert done.stdout == "INCONCLUSIVE: pipeconform is not there; shown.zip belongs beside this file\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    {fault.requirement: fault for fault in reversed((*FAULTS.values(), *wrapper_faults().values()))}.values(),
    ids=lambda fault: fault.requirement,
)
def test_the_program_s_verdict_is_replay_s(shown: Shown, pools: Pools, fault: Fault) -> None:
    asked = shown_by(fault, pools)
    wrong = shown(asked, implementation=fault.reference)
    mended = shown(arguments=("--impl", honest(fault)))

    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert f"\nREPRODUCED:\n{fault.requirement} {fault.expected_status}: " in wrong.stdout
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert f"NOT REPRODUCED: {fault.requirement} met" in mended.stdout
