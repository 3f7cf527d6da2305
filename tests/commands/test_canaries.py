"""What is seen of canaries: how far it is, at once what was not detected, and a table in the end."""

import io

import pytest
from rich.console import Console

from pipeconform.certificate.contents import Canary
from pipeconform.commands.canaries import CanaryView, canary_table


def line(name="not-divided", *, requirement="TRN-3", expected="failed", detected=True, shown=("failed: x",)):
    return Canary(
        fault=name,
        requirement=requirement,
        schedule="1F1B",
        expected=expected,
        detected=detected,
        shown=shown,
        seconds=1.25,
    )


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=110, color_system=None)


def told(console):
    return console.file.getvalue().splitlines()


def test_elsewhere_than_on_a_terminal_every_tenth_takes_a_line(console):
    with CanaryView(console, total=30) as view:
        for number in range(7):
            view.begin(fault=f"fault-{number}", requirement="TRN-1", summary="Wrong.")
            view.tell(line(f"fault-{number}"))

    assert told(console) == ["trying 30 faults", "3 of 30 tried, 3 detected", "6 of 30 tried, 6 detected"]


def test_a_fault_that_is_not_detected_is_told_at_once_with_what_it_showed(console):
    with CanaryView(console, total=40) as view:
        view.tell(line(expected="hung", detected=False, shown=("failed: gradient value", "error: other")))
        view.tell(line("quiet", detected=False, shown=()))

    assert told(console)[1:] == [
        "NOT DETECTED  not-divided, which breaks TRN-3 under 1F1B: expected hung, "
        "seen failed: gradient value; error: other",
        "NOT DETECTED  quiet, which breaks TRN-3 under 1F1B: expected failed, seen nothing",
    ]


def test_what_is_stopped_says_how_far_it_was_and_in_which_fault(console):
    def stopped():
        with CanaryView(console, total=30) as view:
            view.tell(line())
            view.begin(fault="sum-divided", requirement="TRN-3", summary="A sum is divided: wrong.")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert told(console) == ["trying 30 faults", "1 of 30 tried, 1 detected, stopped in TRN-3 sum-divided"]


def test_what_is_redrawn_says_how_far_it_is_and_what_is_being_tried(console):
    view = CanaryView(console, total=4)
    view.tell(line())
    view.begin(fault="sum-divided", requirement="TRN-3", summary="A sum is divided.")

    text = view.render().plain
    assert "faults: 1 of 4 tried, 1 detected" in text
    assert text.count("━") * 3 == text.count("─")
    assert text.splitlines()[-1] == "TRN-3 sum-divided: A sum is divided."


def test_the_table_counts_by_chapter_and_status_what_was_detected(console):
    lines = [
        line(),
        line("b", requirement="TRN-1", expected="hung"),
        line("c", requirement="FWD-1", expected="crashed", detected=False),
    ]
    console.print(canary_table(lines), highlight=False)

    assert [row.split() for row in told(console)] == [
        ["chapter", *["requirements", "faults", "detected", "failed", "error", "crashed", "hung", "seconds"]],
        ["TRN", "2", "2", "2", "1", "–", "–", "1", "2.5"],
        ["FWD", "1", "1", "0", "–", "–", "–", "–", "1.2"],
        ["all", "3", "3", "2", "1", "–", "–", "1", "3.8"],
    ]
