"""Cells as plain text, which pytest and junit.xml show for a test that fails."""

from pipeconform.report.result import Control
from pipeconform.report.text import describe_cell


def test_a_failing_cell_is_told_with_its_control_and_accusations_come_first(make):
    passed = Control(words="without the batch norm", digest="d")
    blocking = Control(
        words="with one replica", digest="d", requirement="TRN-9", status="failed", signature="buffer value"
    )
    cell = make.cell(
        "DPC-9",
        "GPipe",
        make.violation("DPC-9", "GPipe", signature="buffer value", control=blocking),
        make.violation("DPC-9", "GPipe", signature="gradient value", control=passed),
        status="failed",
    )

    lines = [line.strip() for line in describe_cell(cell).splitlines()]

    assert lines[0] == "DPC-9 Synchronised batch norm (MUST), schedule GPipe, variant default: failed"
    told = [line for line in lines if line.startswith(("failed:", "control:", "blocked:"))]
    assert told == [
        "failed: gradient value (step 0, rank 1, microbatch 0)",
        "control: without the batch norm, the case shows nothing wrong",
        "failed: buffer value (step 0, rank 1, microbatch 0)",
        "blocked: with one replica, TRN-9 is violated (failed: buffer value), whose business it is",
    ]
