"""The table of verdicts: nothing is cut off, and every environment variant has a column."""

import io

from rich.console import Console

from pipeconform.report.causes import grouped
from pipeconform.report.overview import overview


def table(result, *, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for one in overview(result.cells, width=width):
        console.print(one)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_titles_take_the_room_that_schedules_leave(make):
    def second_line(width):
        return table(make.result(make.cell("FWD-2", "GPipe")), width=width).splitlines()[1]

    assert second_line(80) == "FWD-2  Order and length of the merged output  ok"
    assert second_line(40) == "FWD-2  Order and length of the m…  ok"
    assert second_line(20) == "FWD-2  ok"


def test_long_schedule_names_stand_in_narrow_columns(make):
    names = ["ForwardOnly", "GPipe", "1F1B", "ZBVZeroBubble", "DualPipeV", "zb_h1"]
    result = make.result(*(make.cell("FWD-1", name) for name in names))

    expected = """\
                             ZBV
       Forward               Zero    Dual
       Only     GPipe  1F1B  Bubble  PipeV  zb_h1
FWD-1  ok       ok     ok    ok      ok     ok"""
    assert table(result, width=60) == expected


def test_a_table_wider_than_the_console_comes_in_parts(make):
    names = [f"Schedule{i}" for i in range(9)]
    shown = table(make.result(*(make.cell("FWD-1", name) for name in names)), width=40)

    assert max(map(len, shown.splitlines())) <= 40
    assert shown.count(" ok") == 9


def test_every_status_has_a_word_that_reads_without_colour(make):
    statuses = ("passed", "failed", "hung", "crashed", "error", "not_claimed", "skipped")
    result = make.result(*(make.cell("FWD-1", s.title(), status=s) for s in statuses))

    assert table(result).splitlines()[-1].split() == [
        "FWD-1",
        "Outputs",
        "ok",
        "FAIL",
        "HUNG",
        "CRASH",
        "ERR",
        "–",
        "skip",
    ]


def test_a_variant_has_one_column_behind_the_default_settings(make):
    def cells(identifier, *statuses, variant="default"):
        return [
            make.cell(identifier, name, status=status, variant=variant)
            for name, status in zip(("GPipe", "1F1B", "ZBVZeroBubble"), statuses, strict=True)
        ]

    result = make.result(
        *cells("FWD-1", "passed", "passed", "failed"),
        *cells("ERR-2", "failed", "skipped", "failed"),
        *cells("ERR-2", "passed", "skipped", "passed", variant="debug"),
        *cells("ERR-3", "passed", "passed", "passed"),
        *cells("ERR-3", "passed", "hung", "passed", variant="debug"),
    )

    expected = """\
                                         ZBV
                                         Zero
                            GPipe  1F1B  Bubble  debug
FWD-1  Outputs              ok     ok    FAIL
ERR-2  Wrong input dtypes   FAIL   skip  FAIL    ok
ERR-3  Outputs that change  ok     ok    ok      HUNG 1/3
debug: with the settings of this name, the worst verdict under any schedule, and under how many of those judged"""
    assert table(result, width=120) == expected


def test_a_variant_that_does_not_fit_comes_in_a_part_of_its_own_with_its_rows_only(make):
    result = make.result(
        *(make.cell("FWD-1", name) for name in ("GPipe", "1F1B", "DualPipeV")),
        *(make.cell("ERR-1", name) for name in ("GPipe", "1F1B", "DualPipeV")),
        *(make.cell("ERR-1", name, variant="validated") for name in ("GPipe", "1F1B", "DualPipeV")),
    )

    shown = table(result, width=34).splitlines()
    assert shown[:7] == [
        "                    Dual",
        "       GPipe  1F1B  PipeV",
        "FWD-1  ok     ok    ok",
        "ERR-1  ok     ok    ok",
        "       default  validated",
        "ERR-1  ok       ok",
        "validated: with the settings of",
    ]


def test_what_is_known_is_worse_than_what_is_met_and_better_than_all_else(make):
    known = make.violation("ERR-1", "GPipe", expected="e.toml:1")
    cells = [
        make.cell("ERR-1", "1F1B", variant="debug"),
        make.cell("ERR-1", "GPipe", known, variant="debug"),
        make.cell("ERR-2", "1F1B", known, variant="debug"),
        make.cell("ERR-2", "GPipe", status="error", variant="debug"),
    ]

    rows = table(make.result(*cells)).splitlines()[1:3]
    assert [row.split()[-2:] for row in rows] == [["known", "1/2"], ["ERR", "1/2"]]


def test_a_violation_says_under_which_variants_it_was_seen(make):
    def group(*variants):
        cells = [
            make.cell("ERR-1", "GPipe", make.violation("ERR-1", "GPipe"), variant=variant)
            for variant in variants
        ]
        (found,) = grouped(cells)
        return found.under()

    assert group("default") == " under GPipe"
    assert group("debug") == " under GPipe (debug)"
    assert group("debug", "default") == " under GPipe (default and debug)"
