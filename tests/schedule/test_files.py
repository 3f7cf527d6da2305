"""Tables survive CSV and JSON; bad files are answered with line, column and reason; traces open."""

import contextlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeconform.errors import BadTableError, UsageError
from pipeconform.schedule import (
    Action,
    Costs,
    Kind,
    Table,
    batch,
    families,
    generate,
    lower,
    simulate,
    verify,
    verify_named,
)
from pipeconform.schedule.csv import from_csv, to_csv
from pipeconform.schedule.families import Size
from pipeconform.schedule.json import from_json, to_json
from pipeconform.schedule.trace import to_chrome_trace


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(item=st.sampled_from(families()), p=st.integers(1, 4), m=st.integers(1, 8), lowered=st.booleans())
def test_tables_go_round(item, p, m, lowered):
    """SCH-8"""
    v = 1 if item.placement == "loop" else 2
    if item.refusal(Size(p, v, m)):
        return
    table = item.generate(num_ranks=p, stages_per_rank=v, num_microbatches=m)
    table = lower(table) if lowered else table

    assert table == from_json(to_json(table))
    if table.num_chains == 1:
        assert table == from_csv(to_csv(table))


def test_batches_go_round():
    table = Table.build(
        [[batch(Action(0, Kind.SEND_F, 0), Action(0, Kind.RECV_B, 0)), Action(0, Kind.F, 0)]],
        placement=(0,),
        num_microbatches=1,
    )

    assert (table, table) == (from_json(to_json(table)), from_csv(to_csv(table)))


def test_idle_cells_are_dropped():
    assert [" ".join(map(str, a)) for a in from_csv("0F0,,,0B0\n,1F0,1B0,\n")] == ["0F0 0B0", "1F0 1B0"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,,0B0\n1F0,,1X0\n", "bad.csv, line 2, column 3 (rank 1): '1X0' is not an action"),
        ("0F0,0B0\n1F0,1X0\n", "bad.csv, line 2, column 2 (rank 1): '1X0' is not an action"),
        ("0F0,0B\n", "bad.csv, line 1, column 2 (rank 0): '0B' is not an action: B needs a microbatch"),
        ("0F0,(0F1;1B0)OVERLAP\n", "line 1, column 2"),
        ('0F0,"0B0\n', "bad.csv, line 1"),
        ("", "the file has no action"),
        (",,\n", "the file has no action"),
        ("0F0\n,,2F0\n", "bad.csv, line 2, column 3: 2F0, but no rank computes stage 1"),
        (
            "0F0,,0B0,0F9000\n",
            "bad.csv, line 1, column 4: 0F9000 names microbatch 9000, but the file has only 3",
        ),
        ("0SEND_F0\n", "no computation from which to infer the placement"),
        ("0F0,0B0\n2RECV_F0,2F0\n", "bad.csv, line 2, column 2: 2F0, but no rank computes stage 1"),
        ("0F0,0F1000\n", "bad.csv, line 1, column 2: 0F1000 names microbatch 1000, but the file has only 2"),
    ],
)
def test_bad_csv_files_are_answered_with_the_place_and_the_reason(text, words):
    with pytest.raises(BadTableError) as caught:
        from_csv(text, name="bad.csv")

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "bad.json, line 2, column 2: Invalid enum value 2 - at `$.version`"),
        ({"placement": "loop"}, "bad.json, line 5, column 2: Expected `array`, got `str` - at `$.placement`"),
        ({"placement": [0, 7]}, "bad.json, line 5, column 2: stage 1 is placed on rank 7"),
        ({"num_microbatches": 0}, "bad.json, line 3, column 2: a table needs at least one microbatch"),
        ({"num_microbatches": 10**9}, "bad.json, line 3, column 2: 1000000000 microbatches, but far fewer"),
        ({"num_microbatches": 1001}, "bad.json, line 3, column 2: 1001 microbatches, but far fewer actions"),
        ({"num_chains": 3}, "bad.json, line 4, column 2: 2 stages cannot form 3 equal chains"),
        (
            {"ranks": ["1F0", "0F0 0Q0"]},
            "bad.json, line 11, column 8 (rank 1, position 1): '0Q0' is not an action",
        ),
        ({"extra": 1}, "bad.json, line 13, column 2: Object contains unknown field `extra`"),
    ],
)
def test_bad_json_documents_are_answered_with_the_place_and_the_reason(change, words):
    document = json.loads(to_json(generate("gpipe", num_ranks=2, num_microbatches=1))) | change

    with pytest.raises(BadTableError) as caught:
        from_json(json.dumps(document, indent=1), name="bad.json")

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0B0", "t.json, line 1, column 1: "),
        ('{"version": 1,\n "ranks"; []}', "t.json, line 2, column 9: "),
        ('{"version": 1,\n', "t.json, line 2, column 1: "),
        ("", "t.json, line 1, column 1: "),
        ("[" * 100_000, "t.json, line 1, column "),
    ],
)
def test_text_that_is_no_json_is_answered_with_the_place(text, words):
    with pytest.raises(BadTableError) as caught:
        from_json(text, name="t.json")

    assert str(caught.value).startswith(words)


def test_a_thousand_microbatches_need_no_actions():
    document = json.loads(to_json(generate("gpipe", num_ranks=2, num_microbatches=1))) | {
        "num_microbatches": 1000
    }

    assert from_json(json.dumps(document)).num_microbatches == 1000
    assert from_csv("0F999\n").num_microbatches == 1000


def test_more_microbatches_need_as_many_actions():
    text = ",".join(f"0F{k}" for k in range(1100))

    assert from_csv(f"{text}\n").num_microbatches == 1100
    with pytest.raises(BadTableError, match="names microbatch 1101, but the file has only 1101 actions"):
        from_csv(f"{text},0F1101\n")


def test_the_first_rank_that_computes_a_stage_owns_it():
    assert from_csv("0F0\n1SEND_F0,2F0\n2B0,1B0\n").placement == (0, 2, 1)
    assert from_csv("(0F0;1B0)OVERLAP_F_B\n").placement == (0, 0)


def test_what_a_csv_file_does_not_say_can_be_told():
    text = "0F0\n1F0\n"

    assert (from_csv(text).placement, from_csv(text).num_microbatches) == ((0, 1), 1)
    told = from_csv(text, placement=[1, 0, 1], num_microbatches=7)
    assert (told.placement, told.num_microbatches) == ((1, 0, 1), 7)
    with pytest.raises(BadTableError, match=r"t\.csv: stage 0 is placed on rank 2"):
        from_csv(text, name="t.csv", placement=[2, 0])


def test_actions_without_a_microbatch_do_not_count_for_their_number():
    assert from_csv("0UNSHARD,0F2,0RESHARD\n").num_microbatches == 3


CELLS = st.sampled_from(["0F0", "0B0", "1F0", "1B0", "1F3", "0I0", "0W1", "0SEND_F0", "1RECV_F0", "1SEND_B0"])
ODD = st.sampled_from(
    ["", "0UNSHARD", "2RESHARD", "(0F0;1B0)OVERLAP_F_B", "(0SEND_F0;0RECV_B0)BATCH", "2F0", "9F9", "x"]
)


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(
    rows=st.lists(st.lists(CELLS | ODD, max_size=6), max_size=4),
    placement=st.none() | st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
def test_whatever_stands_in_a_file_is_refused_or_judged_but_never_a_crash(rows, placement):
    """It cannot be read, or it is judged, as itself and as a family, and timed if it can be run."""
    try:
        table = from_csv("".join(",".join(row) + "\n" for row in rows), placement=placement)
    except BadTableError:
        return
    verify(table)
    for use in (
        lambda: verify_named(table, name="one_f_one_b"),
        lambda: lower(table),
        lambda: to_chrome_trace(simulate(table)),
    ):
        with contextlib.suppress(UsageError):
            use()


def test_a_wrong_batch_that_holds_the_simulation_up_is_told():
    """Its transfers match nothing, so no circle of waits explains it."""
    text = "0RECV_B0\n1F0,1B0,0SEND_F0,2B1,2F0\n2B1,(0SEND_F0;0RECV_B0)BATCH,1F3\n"

    with pytest.raises(BadTableError, match=r"the table cannot be run: rank 1 stops at 1F0$"):
        simulate(from_csv(text, placement=[1, 0, 1], num_microbatches=1))


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_a_damaged_document_is_a_bad_table_or_another_table(data):
    text = to_json(generate("zb_h1", num_ranks=2, num_microbatches=2))
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "9", "x", '"', "{", "\\", "−"])) + text[at + 1 :]

    told = ""
    try:
        from_json(damaged, name="t.json")
    except BadTableError as error:
        told = str(error)

    assert told == "" or re.match(r"t\.json, line \d+, column \d+", told)


@pytest.mark.parametrize("lowered", [True, False])
def test_traces_have_every_row_and_an_arrow_for_every_hand_over_between_ranks(lowered):
    table = generate("zb_v", num_ranks=2, stages_per_rank=2, num_microbatches=3)
    simulation = simulate(lower(table) if lowered else table)

    events = json.loads(to_chrome_trace(simulation))["traceEvents"]

    rows = [event for event in events if event["ph"] in "Xi"]
    leaves = [leaf for actions in simulation.table for action in actions for leaf in action.leaves]
    assert sorted(map(str, leaves)) == sorted(event["name"] for event in rows)
    arrows = [event for event in events if event["ph"] in "sf"]
    # Stages 0 to 3 on ranks 0, 1, 1, 0: two boundaries between ranks, three microbatches, both ways.
    assert len(arrows) == 2 * (2 * 3 * 2)
    assert {"0F1 to 1F1", "1I2 to 0I2", "2F0 to 3F0", "3I1 to 2I1"} <= {event["name"] for event in arrows}
    assert max(e["ts"] + e["dur"] for e in rows if e["ph"] == "X") == 1000 * simulation.makespan


def test_traces_show_sends_that_occupy_their_rank():
    table = lower(generate("gpipe", num_ranks=2, num_microbatches=1))
    costs = Costs(message_bytes=2.0, bandwidth=1.0, overlap=False)

    events = json.loads(to_chrome_trace(simulate(table, costs=costs)))["traceEvents"]

    assert [e["dur"] for e in events if e["ph"] == "X" and "SEND" in e["name"]] == [2000.0, 2000.0]


def test_traces_show_the_activations_held():
    table = generate("one_f_one_b", num_ranks=2, num_microbatches=3)

    events = json.loads(to_chrome_trace(simulate(table)))["traceEvents"]

    assert [e["args"]["held"] for e in events if e["ph"] == "C" and e["pid"] == 0] == [1, 2, 1, 2, 1, 0]


def _events(*ranks, placement=(0, 1), **costs):
    actions = [[Action.parse(word) for word in words.split()] for words in ranks]
    table = Table.build(actions, placement=placement, num_microbatches=2)
    return json.loads(to_chrome_trace(simulate(table, costs=Costs(**costs)), microseconds_per_unit=10.0))[
        "traceEvents"
    ]


TRANSFERS = ("0UNSHARD 0F0 0SEND_F0", "1RECV_F0 1F0")


def test_computations_and_transfers_have_threads_of_their_own_which_have_names():
    events = _events(*TRANSFERS)
    rows = {
        event["name"]: (event["pid"], event["tid"], event["cat"]) for event in events if event["ph"] in "Xi"
    }

    assert rows == {
        "0UNSHARD": (0, 0, "computation"),
        "0F0": (0, 0, "computation"),
        "0SEND_F0": (0, 1, "communication"),
        "1RECV_F0": (1, 1, "communication"),
        "1F0": (1, 0, "computation"),
    }
    named = [
        (event["name"], event["pid"], event["tid"], event["args"]["name"])
        for event in events
        if event["ph"] == "M"
    ]
    assert named == [
        ("process_name", 0, 0, "rank 0"),
        ("thread_name", 0, 1, "communication"),
        ("process_name", 1, 0, "rank 1"),
        ("thread_name", 1, 1, "communication"),
    ]


def test_transfers_that_take_no_time_are_instants_and_everything_else_has_a_duration():
    def shapes(**costs):
        return {
            e["name"]: (e["ts"], e.get("dur", e["ph"]))
            for e in _events(*TRANSFERS, **costs)
            if e["ph"] in "Xi"
        }

    assert shapes() == {
        "0UNSHARD": (0, 0),
        "0F0": (0, 10),
        "0SEND_F0": (10, "i"),
        "1RECV_F0": (0, "i"),
        "1F0": (10, 10),
    }
    assert shapes(message_bytes=2.0, bandwidth=1.0, overlap=False)["0SEND_F0"] == (10, 20)


def test_only_what_changes_them_counts_the_activations_held():
    counted = [
        e["args"]["held"] for e in _events("0UNSHARD 0F0 0I0 0W0 0F1 0B1", placement=(0,)) if e["ph"] == "C"
    ]

    assert counted == [1, 0, 1, 0]


@pytest.mark.parametrize("ranks", [TRANSFERS, ("0F0", "1F0")])
def test_an_arrow_leads_from_the_start_of_a_computation_to_the_start_of_its_user(ranks):
    arrows = [e for e in _events(*ranks) if e["ph"] in "sf"]

    assert [(e["name"], e["ph"], e["pid"], e["ts"], e.get("bp")) for e in arrows] == [
        ("0F0 to 1F0", "s", 0, 0, None),
        ("0F0 to 1F0", "f", 1, 10, "e"),
    ]
    assert len({e["id"] for e in arrows}) == 1


def test_no_arrow_leads_from_what_was_never_computed():
    """A wrong table may send what it has not."""
    assert [e for e in _events("0SEND_F0", "1RECV_F0 1F0") if e["ph"] in "sf"] == []
