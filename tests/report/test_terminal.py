"""The live view: a line per requirement in a file, a few redrawn lines on a terminal."""

import io

import pytest
from rich.console import Console

from pipeconform.report.bulletins import Bulletins
from pipeconform.report.progress import Progress
from pipeconform.report.result import Control
from pipeconform.report.terminal import LiveView, cell_line, requirement_line


@pytest.fixture
def plain():
    return Console(file=io.StringIO(), width=80)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")


def progress(**fields):
    values = {"requirement": "FWD-1", "schedule": "1F1B", "doing": "judging", "judged": 3, "violations": 0}
    return Progress(**(values | fields))


def view_on(console):
    view = LiveView(console, cells={"FWD-1": 2, "TRN-1": 2}, implementation="torch", profile="smoke")
    view.start()
    return view


def rendered(view):
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(view.render())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_in_a_file_a_requirement_takes_one_line_once_all_its_cells_are_judged(make, plain):
    view = view_on(plain)
    view.progress(progress())
    view.cell(make.cell("FWD-1", "GPipe"))
    view.cell(make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe")))
    view.cell(make.cell("FWD-1", "1F1B"))
    view.cell(make.cell("TRN-1", "1F1B"))
    view.stop()

    assert plain.file.getvalue().splitlines() == [
        "judging torch, profile smoke: 2 requirements in 4 cells",
        "FWD-1  2 ok; 8 judgements, 1.0 s",
        "TRN-1  1 ok, 1 FAIL (GPipe); 8 judgements, 1.0 s",
    ]


def test_where_workers_judge_schedule_by_schedule_these_have_a_line_too(make, plain):
    cells, schedules = {"FWD-1": 2, "TRN-1": 2}, {"GPipe": 2, "1F1B": 2}
    view = LiveView(plain, cells=cells, schedules=schedules, implementation="torch", profile="smoke")
    view.start()
    view.cell(make.cell("FWD-1", "GPipe"))
    view.cell(make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe")))
    view.cell(make.cell("FWD-1", "1F1B"))
    view.cell(make.cell("TRN-1", "1F1B"))
    view.stop()

    assert plain.file.getvalue().splitlines() == [
        "judging torch, profile smoke: 2 requirements in 4 cells",
        "all under GPipe: 1 ok, 1 FAIL (TRN-1); 8 judgements, 1.0 s",
        "FWD-1  2 ok; 8 judgements, 1.0 s",
        "TRN-1  1 ok, 1 FAIL (GPipe); 8 judgements, 1.0 s",
        "all under 1F1B: 2 ok; 8 judgements, 1.0 s",
    ]


def test_a_single_schedule_has_no_line_of_its_own(make, plain):
    cells, schedules = {"FWD-1": 1}, {"GPipe": 1}
    view = LiveView(plain, cells=cells, schedules=schedules, implementation="torch", profile="smoke")
    view.cell(make.cell("FWD-1", "GPipe"))

    assert plain.file.getvalue() == "FWD-1  1 ok; 4 judgements, 0.5 s\n"


def test_in_a_file_there_are_no_control_codes(make, plain):
    view = view_on(plain)
    view.cell(make.cell("FWD-1", "GPipe"))
    view.stop()

    assert "\x1b" not in plain.file.getvalue()


def test_on_a_terminal_a_cell_that_is_not_met_scrolls_by(make, terminal):
    view = view_on(terminal)
    view.cell(make.cell("FWD-1", "GPipe"))
    view.cell(make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe")))
    view.stop()

    assert "TRN-1 under GPipe: output value" in terminal.file.getvalue()
    assert "FWD-1 under" not in terminal.file.getvalue()


def test_the_redrawn_lines_tell_what_is_being_done(make, plain):
    view = view_on(plain)
    view.cell(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")))
    view.progress(progress(violations=1))

    _, top, _, doing = rendered(view)

    assert top.startswith("torch, profile smoke: 1 of 4 cells, 1 not met, 7 judgements")
    assert doing == "FWD-1 Outputs, 1F1B: judging, 3 judged, 1 violation"


def test_a_cell_that_ends_takes_its_progress_along(make, plain):
    view = view_on(plain)
    view.progress(progress(judged=4))
    view.cell(make.cell("FWD-1", "GPipe"))

    assert "4 judgements" in rendered(view)[1]


def test_the_redrawn_lines_fit_a_narrow_terminal(plain):
    view = view_on(plain)
    view.progress(progress(schedule="x" * 100))

    assert len(rendered(view)[-1]) <= 80


def test_every_worker_of_a_distributed_run_has_a_line(tmp_path, plain):
    gw0, gw1 = Bulletins(tmp_path), Bulletins(tmp_path)
    view = LiveView(
        plain, cells={"FWD-1": 2}, implementation="torch", profile="smoke", workers=Bulletins(tmp_path).read
    )
    view.start()
    gw0.post("gw0", progress())
    gw1.post("gw1", progress(requirement="TRN-1", schedule="GPipe", judged=4, violations=2))

    _, top, _, *doing = rendered(view)
    assert "7 judgements" in top
    assert doing == [
        "gw0  FWD-1 Outputs, 1F1B: judging, 3 judged",
        "gw1  TRN-1 Gradients, GPipe: judging, 4 judged, 2 violations",
    ]
    gw0.remove("gw0")
    assert rendered(view)[3:] == [doing[1]]


def test_stopping_twice_is_harmless(terminal):
    view = view_on(terminal)
    view.stop()
    view.stop()

    assert rendered(view)


def test_a_cell_that_could_not_be_judged_shows_its_reason(make):
    cell = make.cell("FWD-1", "GPipe", status="error", reason="the harness failed: x\nmore", variant="debug")

    assert str(cell_line(cell)) == "ERR    FWD-1 under GPipe (debug): the harness failed: x"


def test_schedules_are_listed_only_if_others_are_met(make):
    wrong = make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe"))

    assert "(GPipe)" not in str(requirement_line("FWD-1", [wrong]))
    assert "(GPipe)" in str(requirement_line("FWD-1", [wrong, make.cell("FWD-1", "1F1B")]))


def test_each_status_of_a_mixed_row_says_under_which_schedules(make):
    cells = [
        make.cell("LIF-1", "GPipe", make.violation("LIF-1", "GPipe")),
        make.cell("LIF-1", "1F1B", make.violation("LIF-1", "1F1B")),
        make.cell("LIF-1", "ZBV", status="blocked"),
    ]

    assert "2 FAIL (GPipe, 1F1B), 1 blocked (ZBV); " in str(requirement_line("LIF-1", cells))
    assert "(" not in str(requirement_line("LIF-1", cells[:2]))


def test_a_requirement_nobody_claims_counts_no_judgements(make):
    cells = [make.cell("FWD-4", "GPipe", status="not_claimed", judgements=0)]

    assert str(requirement_line("FWD-4", cells)) == "FWD-4  1 not claimed"


class Closed(io.StringIO):
    """A pipe whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_is_gone_ends_the_run_like_an_interruption(monkeypatch):
    monkeypatch.setattr(Console, "on_broken_pipe", lambda self: (_ for _ in ()).throw(SystemExit(1)))

    with pytest.raises(KeyboardInterrupt):
        view_on(Console(file=Closed()))


def test_a_blocked_cell_says_what_is_in_the_way(make):
    control = Control(digest="d", requirement="DPC-1", status="failed", signature="gradient value")
    cell = make.cell("DPC-6", "GPipe", make.violation("DPC-6", "GPipe", control=control), status="blocked")

    assert str(cell_line(cell)) == "block  DPC-6 under GPipe: output value (by DPC-1)"


def test_a_cell_that_is_partly_blocked_names_what_it_accuses(make):
    control = Control(digest="d", requirement="DPC-1", status="failed", signature="gradient value")
    effect = make.violation("DPC-9", "GPipe", signature="gradient value", control=control)
    cell = make.cell("DPC-9", "GPipe", make.violation("DPC-9", "GPipe", signature="buffer value"), effect)

    assert str(cell_line(cell)) == "FAIL   DPC-9 under GPipe: buffer value"


def with_found(make, status="error"):
    """A cell that was met, and the same after FWD-24's control showed a violation of it."""
    found = make.violation("FWD-1", "GPipe", status=status, found_by="FWD-24:GPipe:default:1f3a")
    return make.cell("FWD-1", "GPipe"), make.cell("FWD-1", "GPipe", found)


def test_what_a_control_adds_to_a_cell_that_was_shown_is_shown_again(make, plain):
    view = view_on(plain)
    before, after = with_found(make)
    others = [make.cell("FWD-1", "1F1B"), make.cell("TRN-1", "GPipe"), make.cell("TRN-1", "1F1B")]
    for cell in (before, *others):
        view.cell(cell)
    view.stop()

    view.settle((after, *others))

    assert plain.file.getvalue().splitlines()[-1] == (
        "FWD-1  1 ok, 1 ERR (GPipe); 8 judgements, 1.0 s, as controls of FWD-24 show"
    )
    assert len(plain.file.getvalue().splitlines()) == 4


def test_on_a_terminal_the_cell_itself_is_shown(make, terminal):
    view = view_on(terminal)
    before, after = with_found(make)
    view.cell(before)
    view.stop()

    view.settle((after, make.cell("TRN-1", "GPipe")))  # the second was judged before the run was resumed

    shown = terminal.file.getvalue()
    assert "FWD-1 under GPipe: output value, as controls of FWD-24 show" in shown
    assert "TRN-1" not in shown


def test_cells_that_are_as_they_were_shown_are_not_shown_again(make, plain):
    view = view_on(plain)
    _, after = with_found(make)
    view.cell(after)
    view.stop()
    before = plain.file.getvalue()

    view.settle((after,))

    assert plain.file.getvalue() == before
