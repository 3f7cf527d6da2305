"""A table that bears a family's name is held to everything the family promises."""

import itertools
import subprocess
import sys

import pytest

import pipeconform.schedule
from pipeconform.errors import BadTableError, UnknownNameError, UsageError
from pipeconform.schedule import (
    Action,
    Rule,
    Table,
    families,
    generate,
    lower,
    read_table,
    verify_named,
    write_table,
)
from pipeconform.schedule.families import Size, family
from pipeconform.schedule.named import differences, too_much_bubble
from tests.facts import tells


@pytest.mark.parametrize("item", families(), ids=lambda item: item.name)
def test_every_family_is_itself(item):
    size = next(size for size in (Size(4, 1, 8), Size(4, 2, 8)) if item.refusal(size) is None)
    table = item.generate(num_ranks=4, stages_per_rank=size.stages_per_rank, num_microbatches=8)

    assert verify_named(table, name=item.name) == verify_named(lower(table), name=item.name) == ()


@pytest.mark.parametrize("item", families(), ids=lambda item: item.name)
def test_any_two_neighbours_swapped_are_another_schedule(item):
    """SCH-2: on every rank, at every place where the order is not left free."""
    v = 1 if item.refusal(Size(2, 1, 4)) is None else 2
    table = item.generate(num_ranks=2, stages_per_rank=v, num_microbatches=4)
    free = {"B", "I", "W"} if item.free_backward_order else set()

    for rank, actions in enumerate(table):
        for at, (one, two) in enumerate(itertools.pairwise(actions)):
            if one.kind is two.kind and one.stage == two.stage and one.kind.name in free:
                continue
            swapped = [list(others) for others in table]
            swapped[rank][at : at + 2] = two, one
            found = verify_named(
                Table.build(
                    swapped,
                    placement=table.placement,
                    num_microbatches=table.num_microbatches,
                    num_chains=table.num_chains,
                ),
                name=item.name,
            )
            told = next(v.message for v in found if v.rule is Rule.NAMED)
            assert told.startswith(f"rank {rank}, computation {at}: {two} where {one} is due")


def test_another_schedule_is_told_apart_at_the_first_difference():
    """SCH-2"""
    found = verify_named(generate("gpipe", num_ranks=2, num_microbatches=3), name="one_f_one_b")

    first, second = (v.message for v in found if v.rule is Rule.NAMED)
    assert tells(first, "rank 0", "computation 2", "0F2", "0B0 is due", "after 0F0 0F1")
    assert tells(second, "rank 1", "computation 1", "1F1", "1B0 is due", "after 1F0")
    assert {Rule.NAMED, Rule.IN_FLIGHT} == {v.rule for v in found}


def test_a_table_that_stops_early_or_goes_on_is_told():
    table = generate("forward_only", num_ranks=1, num_microbatches=2)
    short = Table.build([table[0][:1]], placement=(0,), num_microbatches=2)

    assert "0F0 where" not in (text := str(verify_named(short, name="forward_only")[-1]))
    assert "rank 0, computation 1: nothing where 0F1 is due (after 0F0)" in text


def test_a_larger_bubble_than_promised_is_told():
    """SCH-4: 1F1B without warm-up computes one microbatch at a time."""
    table = generate("one_f_one_b", num_ranks=2, num_microbatches=3)
    serial = Table.build(
        [sorted(actions, key=lambda a: (a.microbatch, a.kind)) for actions in table],
        placement=table.placement,
        num_microbatches=3,
    )

    found = [v.message for v in verify_named(serial, name="one_f_one_b") if v.rule is Rule.BUBBLE]

    assert tells(found[0], "rank 0", "idles 9", "one_f_one_b", "promises", "(p−1)·(F + B) = 3")
    assert tells(found[0], "F=1", "I=1", "W=1")


def test_the_bubble_is_compared_at_all_costs_to_which_the_promise_applies():
    """1F1B promises (p − 1)·(F + B); computing 3 microbatches one by one on 2 ranks, each idles 3 times that."""
    words = (["0F0", "0B0", "0F1", "0B1", "0F2", "0B2"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"])
    serial = Table.build(
        [[Action.parse(word) for word in rank] for rank in words], placement=(0, 1), num_microbatches=3
    )

    found = verify_named(serial, name="one_f_one_b", per_rule=None)

    assert [v.message.partition("; ")[0] for v in found if v.rule is Rule.BUBBLE] == [
        f"rank 0 idles {3 * (forward + backward):g} of its makespan"
        for forward, backward in ((1, 2), (1, 3), (2, 2), (2, 3), (2, 2.5))
    ]


def test_a_promise_that_does_not_apply_is_not_held_against_a_table():
    """ZB-V promises no bubble if F = I = W, and if there are enough microbatches."""
    few, enough = (generate("zb_v", num_ranks=3, stages_per_rank=2, num_microbatches=m) for m in (4, 5))

    assert verify_named(few, name="zb_v") == verify_named(enough, name="zb_v") == ()
    assert list(too_much_bubble(few, family=family("zb_v"), size=Size(3, 2, 5))) != []


def test_a_table_that_takes_no_time_idles_for_none():
    nothing = Table.build([[], []], placement=(0, 1, 1, 0), num_microbatches=3)

    assert list(too_much_bubble(nothing, family=family("zb_v"), size=Size(2, 2, 3))) == []


def test_a_table_that_cannot_be_run_is_not_timed():
    circle = Table.build(
        [[Action.parse(word) for word in words.split()] for words in ("0B0 0F0", "1F0 1B0")],
        placement=(0, 1),
        num_microbatches=1,
    )

    assert {v.rule for v in verify_named(circle, name="one_f_one_b")} == {
        Rule.ORDER,
        Rule.DEADLOCK,
        Rule.NAMED,
    }


def test_differences_are_told_with_their_rows():
    expected = Table.build(
        [[Action.parse(word) for word in words.split()] for words in ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")],
        placement=(0, 1),
        num_microbatches=2,
    )

    def told(*ranks, **options):
        actions = [[Action.parse(word) for word in rank.split()] for rank in ranks]
        table = Table.build(actions, placement=(0, 1), num_microbatches=2)
        return [(v.message, v.rows) for v in differences(table, expected=expected, **options)]

    assert told("0UNSHARD 0F0 0F1 0SEND_F1 0B0 0B1", "1F0 1F1 1B0 1B1") == []
    assert told("0UNSHARD 0F0 0F1 0B1 0B0", "1F0 1F1 1B0") == [
        ("rank 0, computation 2: 0B1 where 0B0 is due (after 0F0 0F1)", (3,)),
        ("rank 1, computation 3: nothing where 1B1 is due (after 1F0 1F1 1B0)", ()),
    ]
    assert told("0F0 0F1 0B0 0B1 0B1", "1F1 1F0 1B0 1B1") == [
        ("rank 0, computation 4: 0B1 where nothing is due (after 0F1 0B0 0B1)", (4,)),
        ("rank 1, computation 0: 1F1 where 1F0 is due", (5,)),
    ]
    assert told("0F0 0F1 0B1 0B0", "1F1 1F0 1B1 1B0", free_backward_order=True) == [
        ("rank 1, computation 0: 1F1 where 1F0 is due", (4,))
    ]
    assert told("0F0 0F1 0I0 0B1", "1F0 1F1 1B0 1B1", free_backward_order=True) == [
        ("rank 0, computation 2: 0I0 where 0B0 is due (after 0F0 0F1)", (2,))
    ]


@pytest.mark.parametrize("kind", ["B", "I", "W"])
def test_only_backwards_are_free_to_come_in_another_order(kind):
    def table(*words):
        return Table.build([[Action.parse(word) for word in words]], placement=(0,), num_microbatches=2)

    one, other = table(f"0{kind}0", f"0{kind}1"), table(f"0{kind}1", f"0{kind}0")

    assert list(differences(one, expected=other, free_backward_order=True)) == []
    assert len(list(differences(one, expected=other))) == 1
    forwards = table("0F0", "0F1"), table("0F1", "0F0")
    assert len(list(differences(forwards[0], expected=forwards[1], free_backward_order=True))) == 1


def test_another_number_of_ranks_is_told_and_nothing_else():
    two, three = (generate("gpipe", num_ranks=p, num_microbatches=1) for p in (2, 3))

    assert [v.message for v in differences(two, expected=three)] == ["it has 2 ranks; 3 are expected"]


def test_a_v_schedule_on_a_loop_is_refused():
    """SCH-7"""
    table = generate("zb_v", num_ranks=2, stages_per_rank=2, num_microbatches=4)
    looped = Table.build(list(table), placement=(0, 1, 0, 1), num_microbatches=4)

    messages = [v.message for v in verify_named(looped, name="zb_v") if v.rule is Rule.PLACEMENT]

    assert "its placement is (0, 1, 0, 1); zb_v has (0, 1, 1, 0)" in messages


def test_the_free_backward_order_is_free():
    table = generate("gpipe", num_ranks=2, num_microbatches=3)
    reversed_backward = Table.build(
        [actions[:3] + actions[:2:-1] for actions in table], placement=(0, 1), num_microbatches=3
    )

    assert verify_named(reversed_backward, name="gpipe") == ()


def test_what_cannot_be_judged_is_refused():
    table = generate("gpipe", num_ranks=2, num_microbatches=3)

    with pytest.raises(UnknownNameError, match="gpipe"):
        verify_named(table, name="gpip")
    with pytest.raises(UsageError, match="two stages per rank"):
        verify_named(table, name="zb_v")
    with pytest.raises(BadTableError, match="1 stages are not a multiple of 2 ranks"):
        verify_named(Table.build([[], []], placement=(0,), num_microbatches=1), name="gpipe")


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_files_go_round(tmp_path, ending):
    table = lower(generate("one_f_one_b", num_ranks=2, num_microbatches=3))

    write_table(table, tmp_path / f"t.{ending}")

    assert table == read_table(tmp_path / f"t.{ending}")


def test_files_that_cannot_be_read_or_written(tmp_path):
    table = generate("gpipe", num_ranks=1, num_microbatches=1)
    (tmp_path / "binary.csv").write_bytes(b"0F0,\xff")

    with pytest.raises(BadTableError, match="No such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(BadTableError, match=r"byte 4"):
        read_table(tmp_path / "binary.csv")
    with pytest.raises(BadTableError, match=r"\.csv or \.json files, not \.txt"):
        write_table(table, tmp_path / "t.txt")
    with pytest.raises(BadTableError, match="No such file"):
        write_table(table, tmp_path / "no" / "t.csv")


def test_public_names_are_sorted_and_there():
    assert sorted(pipeconform.schedule.__all__) == pipeconform.schedule.__all__
    assert all(hasattr(pipeconform.schedule, name) for name in pipeconform.schedule.__all__)


def test_torch_is_never_imported():
    code = "import pipeconform.schedule, sys; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
