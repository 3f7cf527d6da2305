"""The smallest runs: one rank, one stage, one microbatch. A judgement that skips the first or last one skips all."""

import pytest

from pipeconform.case import blocks
from pipeconform.case.case import Train
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.judge.timeline import executed
from pipeconform.schedule import generate, to_csv
from tests.judge.executions import evidence
from tests.judge.honest import honest, masks_for, of_blocks


def _told(requirement, made):
    return [finding.kind for finding in JUDGEMENTS[requirement].judge(made)]


TABLE = to_csv(generate("gpipe", num_ranks=1, num_microbatches=1))


@pytest.mark.parametrize("requirement", ["SCH-1", "SCH-2", "SCH-3", "SCH-4", "SCH-5", "SCH-7", "SCH-8"])
def test_one_forward_and_its_backward_are_all_that_is_due(requirement):
    assert _told(requirement, evidence("0F0 0B0", m=1, family="gpipe", table=TABLE)) == []


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", ["no F", "no B or I", "no W"]),
        ("0F0", ["no B or I", "no W"]),
    ],
)
def test_each_of_the_two_is_missed_and_counted(text, kinds):
    assert _told("SCH-1", evidence(text, m=1)) == kinds


def test_a_dry_run_before_the_only_forward_is_none_that_counts():
    (one,) = executed(evidence("0F0 0F0 0B0", m=1), 0)

    assert list(map(str, one.actions)) == ["0F0", "0B0"]
    assert one.probes == (0,)


def test_one_evaluated_microbatch_has_no_backward():
    assert _told("SCH-1", evidence("0f0", m=1, trains=False)) == []
    assert _told("SCH-1", evidence("0F0 0B0", m=1, trains=False)) == ["a backward where none is due"]


def test_two_microbatches_that_draw_one_mask_are_enough():
    case = of_blocks(blocks.Linear(), blocks.Dropout(), program=(Train(batch_size=24, num_microbatches=2),))

    assert _told("TRN-10", honest(case, masks=masks_for(case))) == []
    assert _told("TRN-10", honest(case, masks=masks_for(case, alike=True))) == ["one dropout mask"]
