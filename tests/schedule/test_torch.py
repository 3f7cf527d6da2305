"""Our tables against those torch generates, and files torch writes against files we write."""

import itertools

import pytest

from pipeconform.schedule import Delivery, generate, lower, verify, with_waits
from pipeconform.schedule.csv import from_csv, to_csv
from tests.facts import tells
from tests.schedule.torch_tables import csv_of as _written
from tests.schedule.torch_tables import declared, lowered, waits_for_sends
from tests.schedule.torch_tables import schedule as _schedule

SIZES = list(itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 4, 6, 7, 8, 12)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("interleaved_one_f_one_b", "Interleaved1F1B"),
        ("interleaved_zero_bubble", "InterleavedZeroBubble"),
        ("zb_v", "ZBVZeroBubble"),
        ("dualpipe_v", "DualPipeV"),
    ],
)
def test_same_tables_and_same_refusals(ours, theirs):
    from pipeconform.errors import UsageError

    compared = 0
    for p, v, m in SIZES:
        try:
            table = generate(ours, num_ranks=p, stages_per_rank=v, num_microbatches=m)
        except UsageError:
            with pytest.raises(ValueError):  # noqa: PT011 - each schedule has its own words
                _schedule(theirs, p=p, v=v, m=m)
            continue
        text = _written(_schedule(theirs, p=p, v=v, m=m).pipeline_order, p)
        assert table == from_csv(text, placement=table.placement, num_microbatches=m), (p, v, m)
        compared += 1

    assert compared >= 10


def test_looped_bfs_differs_in_the_backward_order_of_microbatches_only():
    for p, v, m in SIZES:
        table = generate("looped_bfs", num_ranks=p, stages_per_rank=v, num_microbatches=m)
        text = _written(_schedule("LoopedBFS", p=p, v=v, m=m).pipeline_order, p)
        theirs = from_csv(text, placement=table.placement, num_microbatches=m)
        for mine, yours in zip(table, theirs, strict=True):
            assert [(a.stage, a.kind) for a in mine] == [(a.stage, a.kind) for a in yours]
            assert mine[: v * m] == yours[: v * m]
        assert verify(theirs) == ()


def test_gpipe_is_the_same():
    for p, m in itertools.product((1, 2, 4), (1, 3, 8)):
        assert generate("gpipe", num_ranks=p, num_microbatches=m) == declared("GPipe", p=p, v=1, m=m)


def test_the_order_torch_reports_for_1f1b_misnumbers_the_last_rank():
    """A defect of torch 2.13: its declared 1F1B order has no forward 0 on the last rank, but one too many."""
    theirs = declared("1F1B", p=2, v=1, m=3)

    assert theirs[0] == generate("one_f_one_b", num_ranks=2, num_microbatches=3)[0]
    assert " ".join(map(str, theirs[1])) == "1F1 1B0 1F2 1B1 1F3 1B2"
    assert any("no such microbatch" in violation.message for violation in verify(theirs))


LOWERED = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


@pytest.mark.parametrize("theirs", LOWERED)
def test_tables_lowered_by_torch_are_correct(theirs):
    """Sends, receives, unshard, reshard and reduce-grad included."""
    for p, m in ((2, 4), (3, 6), (4, 8)):
        table = lowered(theirs, p=p, v=2, m=m)
        assert table.has_communication
        assert verify(table) == ()


@pytest.mark.parametrize(
    ("name", "theirs"), [("interleaved_one_f_one_b", "Interleaved1F1B"), ("dualpipe_v", "DualPipeV")]
)
def test_files_go_round_with_torch(tmp_path, name, theirs):
    """SCH-8: torch reads what we write and writes what we read, in both formats."""
    table = generate(name, num_ranks=2, stages_per_rank=2, num_microbatches=4)
    communicating = with_waits(lower(table)) if waits_for_sends() else lower(table)
    for form, written in (("compute_only", table), ("compute_comms", communicating)):
        mine, yours = tmp_path / "mine.csv", tmp_path / "yours.csv"
        mine.write_text(to_csv(written), newline="")
        schedule = _schedule(theirs, p=2, v=2, m=4)
        schedule._load_csv(str(mine), format=form)
        schedule._dump_csv(str(yours), format=form)
        assert mine.read_bytes() == yours.read_bytes()
        assert written == from_csv(yours.read_text())


def test_torch_simulates_what_we_lower():
    from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

    table = lower(generate("zb_v", num_ranks=4, stages_per_rank=2, num_microbatches=8))
    order = {rank: [_Action.from_str(str(a)) for a in actions] for rank, actions in enumerate(table)}

    assert _simulate_comms_compute(order, lambda stage: table.placement[stage], table.num_stages)


_IN_ORDER = frozenset({Delivery.ORDERED, Delivery.COMMUNICATOR})
_FORBIDDEN = {False: _IN_ORDER | {Delivery.SYNCHRONOUS}, True: _IN_ORDER}
"""Deferred receives deadlock where sends hold their rank up; since 2.15 a later wait does, and where order is kept."""


def test_torchs_deferred_receives_deadlock_when_sends_block():
    """A defect of torch: with ``defer_pp_recv`` both ranks send to each other before they post."""
    table = lowered("Interleaved1F1B", p=2, v=1, m=2, defer_pp_recv=True)

    found = {v.delivery: v.message for v in verify(table)}

    assert set(found) == _FORBIDDEN[waits_for_sends()]
    if Delivery.SYNCHRONOUS in found:
        first, second = found[Delivery.SYNCHRONOUS].split("; ")
        assert tells(first, "rank 0", "cannot finish 0SEND_F1", "rank 1", "not posted 1RECV_F1")
        assert tells(second, "rank 1", "cannot finish 1SEND_B0", "rank 0", "not posted 0RECV_B0")
    first, second = found[Delivery.ORDERED].split("; ")
    assert tells(first, "rank 0", "0SEND_F1 before 0RECV_B0", "1RECV_F1 is not due", "rank 1")
    assert tells(second, "rank 1", "1SEND_B0 before 1RECV_F1", "0RECV_B0 is not due", "rank 0")


@pytest.mark.parametrize("theirs", LOWERED)
def test_deferred_receives_deadlock_at_the_sizes_that_are_written_up(theirs):
    """docs/findings, 19: on two ranks or more with two microbatches or more; LoopedBFS from m = p and v = 2 on."""
    judged = 0
    for p, v, m in itertools.product((1, 2, 3), (1, 2), (1, 2, 3, 4, 6)):
        try:
            table = lowered(theirs, p=p, v=v, m=m, defer_pp_recv=True)
        except ValueError:
            continue
        judged += 1
        written_up = p >= 2 and m >= 2 and (theirs != "LoopedBFS" or (v >= 2 and m >= p))
        forbidden = _FORBIDDEN[waits_for_sends()] if written_up else set()
        if waits_for_sends() and theirs == "LoopedBFS" and p > 2:
            forbidden -= {Delivery.ORDERED}  # the circle goes over three ranks, and no pair is in it twice
        assert {found.delivery for found in verify(table)} == forbidden, (p, v, m)

    assert judged >= 6
