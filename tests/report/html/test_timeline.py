"""Computations are placed on a common clock in the order that the result holds."""

import pytest

from pipeconform.report.html.gantt import waits
from pipeconform.report.html.place import Place
from pipeconform.report.html.timeline import executed_plot, named_plot
from pipeconform.report.result import Implementation

CLAIMED = Implementation(
    reference="x",
    name="x",
    version="1",
    capabilities={"schedules": [{"name": "GPipe", "placement": "loop", "family": "gpipe"}]},
)
RAN = (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1"))


def labels(plot):
    return tuple(tuple(cell.label for cell in lane) for lane in plot.lanes)


def test_what_ran_keeps_its_order_and_waits_for_its_data(make):
    plot = executed_plot(make.violation("SCH-2", "GPipe", timeline=RAN))
    times = {cell.label: (cell.start, cell.end) for lane in plot.lanes for cell in lane}

    assert labels(plot) == RAN
    assert plot.timed
    assert (times["1F0"], times["1B0"], times["0B0"]) == ((1, 2), (2, 4), (4, 6))
    assert [(wait.start, wait.end, wait.source) for wait in waits(plot, 0, labels=["rank 0", "rank 1"])] == [
        (2, 4, "1B0 of rank 1"),
        (6, 7, "1B1 of rank 1"),
    ]


def test_an_order_that_cannot_be_run_on_paper_is_shown_all_the_same(make):
    impossible = (("0B0", "0F0"), ("1F0", "1B0"))
    plot = executed_plot(make.violation("SCH-2", "GPipe", timeline=impossible))

    assert (labels(plot), plot.timed) == (impossible, False)
    assert list(waits(plot, 0, labels=["rank 0", "rank 1"])) == []


@pytest.mark.parametrize(
    "timeline", [None, (("0F0",),), (("nonsense",), ()), (("0SEND_F0",), ()), (("0F0",) * 5000, ())]
)
def test_what_cannot_be_drawn_is_not_drawn(make, timeline):
    assert executed_plot(make.violation("SCH-2", "GPipe", timeline=timeline)) is None


def test_a_timeline_may_be_empty(make):
    plot = executed_plot(make.violation("SCH-2", "GPipe", timeline=((), ())))

    assert (labels(plot), plot.makespan) == (((), ()), 0)


def test_a_named_schedule_is_drawn_for_the_step_at_fault(make):
    violation = make.violation("TRN-1", "GPipe")
    plot = named_plot(violation, Place(step=0), CLAIMED)

    assert labels(plot)[1] == ("1F0", "1F1", "1B0", "1B1")
    assert named_plot(violation, Place(step=1), CLAIMED) is None  # zero_grad runs nothing
    assert named_plot(violation, Place(step=7), CLAIMED) is None


def test_evaluation_has_forwards_only(make):
    from pipeconform.case.case import Eval

    case = make.changed(make.case(), program=(Eval(batch_size=2, num_microbatches=2),))
    plot = named_plot(make.violation("SCH-9", "GPipe", case), Place(), CLAIMED)

    assert labels(plot) == (("0F0", "0F1"), ("1F0", "1F1"))


@pytest.mark.parametrize(
    "capabilities",
    [
        None,
        [],
        {"schedules": 3},
        {"schedules": ["GPipe", {"name": "GPipe", "family": "unheard of"}]},
        {"schedules": [{"name": "GPipe", "family": 5}]},
    ],
)
def test_claims_that_cannot_be_read_are_as_good_as_none(make, capabilities):
    implementation = make.changed(CLAIMED, capabilities=capabilities)

    assert named_plot(make.violation("TRN-1", "GPipe"), Place(step=0), implementation) is None
