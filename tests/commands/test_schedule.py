"""``pipeconform schedule`` as a user types it: verdicts with proofs, times, pictures, and plain errors."""

import json

import pytest

from pipeconform.schedule import Delivery, families, generate, lower, to_csv, to_json
from pipeconform.schedule.families import Size

CROSSED = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\r\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\r\n"
)
"""1F1B on two ranks whose first sends before it posts what the second sends it."""

PROOF = (
    "[SCH-5 deadlock under synchronous sends] rank 0 cannot finish 0SEND_F1 because rank 1 has not posted "
    "1RECV_F1; rank 1 cannot finish 1SEND_B0 because rank 0 has not posted 0RECV_B0"
)


@pytest.fixture
def typed(typed, monkeypatch):
    """Run ``pipeconform schedule …`` in an empty folder; return exit code, standard output and error."""
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: typed("schedule", *arguments)


@pytest.fixture
def crossed(tmp_path):
    (tmp_path / "crossed.csv").write_text(CROSSED, newline="")
    return "crossed.csv"


def _size(item):
    return ["-p", 4, "-v", 1 if item.refusal(Size(4, 1, 8)) is None else 2, "-m", 8]


# verify


@pytest.mark.parametrize("item", families(), ids=lambda item: item.name)
def test_every_family_verifies_as_itself(typed, item):
    code, out, err = typed("verify", "--name", item.name, *_size(item), "--lower")

    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == (
        "no violation; judged: completeness; order; placement; sends and receives; deadlock under buffered "
        "sends, synchronous sends, synchronous sends in order per pair of ranks, synchronous sends in order per "
        f"communicator; the order, memory and bubble of {item.name}"
    )


@pytest.mark.parametrize("ending", ["csv", "json"])
@pytest.mark.parametrize("lowered", [True, False])
def test_files_of_every_format_are_verified(typed, tmp_path, ending, lowered):
    """SCH-8: torch's compute-only CSV, its CSV with communication, and our JSON."""
    table = generate("zb_v", num_ranks=2, stages_per_rank=2, num_microbatches=3)
    table = lower(table) if lowered else table
    (tmp_path / f"t.{ending}").write_text(to_csv(table) if ending == "csv" else to_json(table), newline="")

    code, out, _ = typed("verify", f"t.{ending}", "--family", "ZB-V")

    assert code == 0
    assert out.startswith(f"t.{ending}: 2 ranks, 4 stages (v), 3 microbatches, ")
    assert ("with communication" in out.splitlines()[0]) == lowered


def test_a_violation_is_printed_with_its_proof(typed, crossed):
    code, out, _ = typed("verify", crossed)

    assert code == 1
    assert PROOF in out.splitlines()
    assert out.splitlines()[-1] == "3 violations"


@pytest.mark.parametrize(
    ("delivery", "code", "found"),
    [
        ("buffered", 0, set()),
        ("synchronous", 1, {"synchronous"}),
        ("ordered", 1, {"ordered", "synchronous"}),
        ("communicator", 1, {"communicator", "ordered", "synchronous"}),
    ],
)
def test_the_delivery_decides_what_is_a_deadlock(typed, crossed, delivery, code, found):
    got, out, _ = typed("verify", crossed, "--delivery", delivery, "--json")

    assert got == code
    assert {violation["delivery"] for violation in json.loads(out)["violations"]} == found


def test_every_delivery_can_be_asked_for(typed, crossed):
    assert {typed("verify", crossed, "--delivery", delivery.name.lower())[0] for delivery in Delivery} <= {
        0,
        1,
    }


def test_the_violations_of_a_compute_only_table_come_before_lowering(typed, tmp_path):
    (tmp_path / "circle.csv").write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")

    code, out, _ = typed("verify", "circle.csv", "--lower")

    assert code == 1
    assert "[SCH-5 deadlock] rank 0 cannot start 0B0 because rank 1 has not run 1B0; " in out


def test_another_family_is_told_apart(typed):
    code, out, _ = typed("verify", "--name", "gpipe", "-p", 2, "-m", 3, "--family", "1F1B")

    assert code == 1
    assert "[SCH-2 named order] rank 0, computation 2: 0F2 where 0B0 is due (after 0F0 0F1)" in out


def test_all_findings_are_printed_unless_limited(typed, tmp_path):
    (tmp_path / "lost.csv").write_text("".join(f"0F{k}," for k in range(12)))

    every = [line for line in typed("verify", "lost.csv")[1].splitlines() if line.startswith("[")]
    limited = [
        line for line in typed("verify", "lost.csv", "--limit", 3)[1].splitlines() if line.startswith("[")
    ]

    assert [len(every), len(limited)] == [12, 3]
    assert limited[-1].endswith("it has neither B nor I (and 9 more)")


def test_a_table_that_evaluates_has_no_backward_to_miss(typed, tmp_path):
    (tmp_path / "eval.csv").write_text("0F0,0F1\n1F0,1F1\n")

    assert [typed("verify", "eval.csv")[0], typed("verify", "eval.csv", "--forward-only")[0]] == [1, 0]


def test_a_csv_file_can_be_told_what_it_does_not_say(typed, tmp_path):
    (tmp_path / "t.csv").write_text("0F0,0B0,1F0,1B0\n1F1,1B1\n")

    _, out, _ = typed("verify", "t.csv", "--placement", "0,1", "-m", 3)

    assert out.startswith("t.csv: 2 ranks, 2 stages (loop), 3 microbatches, ")
    assert "[SCH-7 placement] 1F0 (rank 0, position 2): the placement gives this stage to rank 1" in out
    assert "[SCH-1 multiset] stage 0, microbatch 2: it has no F" in out


# simulate


def test_times_are_printed_per_rank_beside_what_is_promised(typed):
    code, out, _ = typed("simulate", "--name", "one_f_one_b", "-p", 4, "-m", 8)

    assert code == 0
    assert "makespan 33, busy 72.7%" in out
    rows = [line.split() for line in out.splitlines() if "%" in line and "makespan" not in line]
    assert rows == [
        ["0", "24", "72.7%", "9", "9", "4", "4"],
        ["1", "24", "72.7%", "9", "6", "3", "3"],
        ["2", "24", "72.7%", "9", "3", "2", "2"],
        ["3", "24", "72.7%", "9", "0", "1", "1"],
    ]
    assert "longest idle time in the whole step = (p−1)·(F + B) = 9; simulated 9\n" in out
    assert "critical path (22 computations, 33 computing, 0 in transfers):\nrank 0: 0F0 → rank 1: 1F0" in out


def test_costs_are_taken(typed):
    """Two ranks, one microbatch: F, a transfer, F and B of stage 1, a transfer, B of stage 0."""
    costs = ["--forward", "1,3", "--input", 2, "--weight", "0.5", "--latency", 0.25]
    transfer = ["--bytes", 100, "--bandwidth", 200]

    _, out, _ = typed("simulate", "--name", "gpipe", "-p", 2, "-m", 1, *costs, *transfer, "--json")

    assert json.loads(out)["makespan"] == 1 + 0.75 + 3 + 2.5 + 0.75 + 2.5


def test_sends_can_occupy_their_rank(typed):
    """0F0, 2 of sending, then 0F1; with overlap 0F1 starts at once."""
    size = ["--name", "forward_only", "-p", 2, "-m", 2, "--lower", "--bytes", 2, "--bandwidth", 1, "--json"]

    makespans = [
        json.loads(typed("simulate", *size, *overlap)[1])["makespan"] for overlap in ([], ["--no-overlap"])
    ]

    assert makespans == [1 + 1 + 2 + 1, 1 + 2 + 1 + 2 + 1]


def test_transfers_are_placed_for_the_costs_that_are_given(typed):
    """Lowered for transfers twice as long as a forward, a table takes no longer than without receives."""
    size = ["--name", "zb_v", "-p", 2, "-v", 2, "-m", 12, "--latency", 2, "--json"]

    plain, lowered = (json.loads(typed("simulate", *size, *more)[1]) for more in ([], ["--lower"]))

    assert plain["makespan"] == lowered["makespan"]


def test_json_has_every_number_and_the_whole_critical_path(typed):
    _, out, _ = typed("simulate", "--name", "zb_h1", "-p", 2, "-m", 3, "--json")

    document = json.loads(out)
    assert document["makespan"] == 10
    assert document["ranks"][1] == {
        "busy": 9.0,
        "span": 9.0,
        "makespan_bubble": 1.0,
        "span_bubble": 0.0,
        "peak_in_flight_input": 1,
        "peak_in_flight_weight": 2,
    }
    path = document["critical_path"]
    assert path[0] == {"action": "0F0", "rank": 0, "start": 0.0, "end": 1.0}
    assert path[-1]["end"] == document["makespan"]


def test_costs_outside_the_promise_are_said_to_be(typed):
    _, out, _ = typed("simulate", "--name", "zb_v", "-p", 2, "-v", 2, "-m", 4, "--latency", 1)

    assert "ZB-V claims no idle time at this size and these costs (0 elsewhere)" in out


def test_a_table_that_cannot_run_is_bad_input_with_the_proof(typed, tmp_path):
    (tmp_path / "circle.csv").write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")

    code, out, err = typed("simulate", "circle.csv")

    assert (code, out) == (2, "")
    assert err.startswith("pipeconform: the table cannot be run: rank 0 cannot start 0B0 because rank 1")


def test_a_wrong_table_is_timed_with_a_warning(typed, tmp_path):
    (tmp_path / "short.csv").write_text("0F0,0F1,0B0\n")

    code, out, err = typed("simulate", "short.csv")

    assert code == 0
    assert "makespan 4" in out
    assert err == (
        "pipeconform: warning: the table is wrong, so its times may be meaningless: [SCH-1 multiset] stage 0, "
        "microbatch 1: it has neither B nor I ('pipeconform schedule verify short.csv' prints all violations)\n"
    )


def test_an_evaluation_is_timed_without_a_warning(typed, tmp_path):
    table = lower(generate("forward_only", num_ranks=2, num_microbatches=3))
    (tmp_path / "eval.csv").write_text(to_csv(table), newline="")

    assert typed("simulate", "eval.csv")[2] == ""


# draw


def test_the_terminal_shows_cells_idle_time_and_what_is_held(typed):
    code, out, _ = typed("draw", "--name", "one_f_one_b", "-p", 2, "-m", 2)

    assert (code, out.splitlines()[:5]) == (
        0,
        [
            "1F1B, p = 2, v = 1, m = 2",
            "rank 0 0F0|0F1|········0B0----|····0B1----|",
            "rank 1 ····1F0|1B0----|1F1|1B1----|········",
            "held 0 ▄▄▄▄████████████████████▄▄▄▄▄▄▄▄▄▄▄▄",
            "held 1     ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄",
        ],
    )


@pytest.mark.parametrize("said", [("ZBV",), ("zb_v",), ("--name", "zb_v"), ("--name", "zb_v", "-v", 2)])
def test_a_family_is_drawn_by_its_name_alone_with_the_stages_that_it_takes(typed, said):
    code, out, err = typed("draw", *said, "-p", 4, "-m", 8)

    assert (code, err) == (0, "")
    assert out == typed("draw", "--name", "zb_v", "-p", 4, "-v", 2, "-m", 8)[1]


def test_a_file_comes_before_a_family_of_its_name(typed, tmp_path):
    (tmp_path / "gpipe").write_text("nothing")

    assert typed("draw", "gpipe", "-p", 2, "-m", 2)[0] == 2


def test_the_terminal_can_be_coloured_and_cut(typed):
    _, out, _ = typed("draw", "--name", "gpipe", "-p", 2, "-m", 9, "--colour", "--width", 40)

    lines = out.splitlines()
    assert "\x1b[0;30;44m" in lines[1]
    assert len(lines[3]) <= 40


def test_pictures_and_traces_are_written(typed, tmp_path):
    files = ["--svg", "t.svg", "--trace", "t.json", "--title", "mine & yours"]

    code, out, _ = typed("draw", "--name", "zb_v", "-p", 2, "-v", 2, "-m", 4, *files)

    assert (code, out) == (0, "written: t.svg\nwritten: t.json\n")
    assert "mine &amp; yours" in (tmp_path / "t.svg").read_text()
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == 4 * 4 * 3


def test_a_picture_that_is_to_be_a_png_is_refused_with_the_remedy(typed, tmp_path):
    code, out, err = typed("draw", "--name", "gpipe", "-p", 2, "-m", 2, "--svg", "t.png")

    assert (code, out) == (2, "")
    assert err == "pipeconform: --svg t.png: pictures are written as SVG; choose a name that ends in .svg\n"
    assert not (tmp_path / "t.png").exists()


# list


def test_every_family_is_listed_with_its_formula_and_source(typed):
    code, out, _ = typed("list")

    assert code == 0
    for item in families():
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [item.name]]
        assert item.source in line
        assert (item.bubble.formula if item.bubble else "no claim") in line


# what cannot be done


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["verify"], "name one table: a FILE, or --name NAME with -p, -v and -m"),
        (["verify", "t.csv", "--name", "gpipe"], "name one table: a FILE, or --name NAME with -p, -v and -m"),
        (["verify", "t.csv", "-p", "2"], "-p and -v are for --name; a file determines its ranks and stages"),
        (
            ["verify", "t.json", "-m", "2"],
            "--placement and -m are for CSV files; a JSON file contains both",
        ),
        (["verify", "t.csv", "--placement", "0,x"], "--placement 0,x: expected the rank of every stage"),
        (["verify", "no.csv"], "cannot read no.csv: No such file or directory"),
        (["verify", "t.txt"], "cannot read t.txt: No such file or directory"),
        (["verify", "bad.csv"], "bad.csv, line 2, column 3 (rank 1): '1X0' is not an action; expected "),
        (["draw", "bad.csv"], "bad.csv, line 2, column 3 (rank 1): '1X0' is not an action; expected "),
        (["simulate", "bad.json"], "bad.json, line 2, column 2: JSON is malformed: "),
        (
            ["verify", "--name", "1F2B", "-p", "2", "-m", "2"],
            "unknown schedule family '1F2B'; nearest: one_f_one_b",
        ),
        (["draw", "--name", "zbv", "-p", "2", "-m", "2"], "unknown schedule family 'zbv'; nearest: zb_v"),
        (["verify", "--name", "gpipe", "-p", "2"], "--name gpipe needs -p RANKS and -m MICROBATCHES"),
        (
            ["verify", "--name", "gpipe", "-p", "2", "-v", "2", "-m", "2"],
            "gpipe has no table for p=2, v=2, m=2: ",
        ),
        (
            ["verify", "--name", "gpipe", "-p", "9999", "-m", "9999"],
            "p·v·m is 99,980,001, more than the limit of 5,000,000",
        ),
        (
            ["verify", "--name", "gpipe", "-p", "2", "-m", "2", "--placement", "0,1"],
            "--placement is for a CSV",
        ),
        (
            ["verify", "t.csv", "--family", "gpipe", "--forward-only"],
            "--forward-only is for tables without --family",
        ),
        (
            ["simulate", "--name", "gpipe", "-p", "2", "-m", "2", "--forward", "x"],
            "--forward x: expected a number",
        ),
        (
            ["simulate", "--name", "gpipe", "-p", "2", "-m", "2", "--forward", "1,2,3"],
            "cost forward is given for 3",
        ),
        (["simulate", "--name", "gpipe", "-p", "2", "-m", "2", "--bytes", "9"], "--bytes need --bandwidth"),
        (
            ["simulate", "--name", "gpipe", "-p", "2", "-m", "2", "--latency", "-1"],
            "bandwidth must be > 0; latency",
        ),
        (
            ["draw", "--name", "gpipe", "-p", "2", "-m", "2", "--svg", "/proc/no/x.svg"],
            "cannot write /proc/no/x.svg: ",
        ),
        (
            ["simulate", "--name", "gpipe", "-p", "2", "-m", "2", "--no-overlap"],
            "--no-overlap needs sends in the table",
        ),
        (["draw", "--name", "gpipe", "-p", "1", "-m", "40000"], "80000 computations do not fit a picture"),
        (
            ["verify", "sent.csv", "--lower"],
            "the table has sends or receives already; lower a compute-only table",
        ),
        (["verify", "t.csv", "--delivery", "late"], "Invalid value for '--delivery': 'late' is not one of"),
    ],
)
def test_wrong_input_is_answered_in_one_line(typed, tmp_path, arguments, expected):
    (tmp_path / "bad.csv").write_text("0F0,,0B0\n1F0,,1X0\n")
    (tmp_path / "bad.json").write_text("{\n x}")
    (tmp_path / "sent.csv").write_text(
        to_csv(lower(generate("gpipe", num_ranks=2, num_microbatches=2))), newline=""
    )
    code, _, err = typed(*arguments)

    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"pipeconform: {expected}")
