"""Tables keep what they are given, compactly and unchangeably."""

import numpy as np
import pytest

from pipeconform.errors import BadTableError
from pipeconform.schedule import Action, Kind, Table, batch, generate, lower, overlap, without_communication
from pipeconform.schedule.placement import explicit, loop, name_of, stages_of, v

F, B = Kind.F, Kind.B


def _odd_table():
    """Two ranks with a pair, a batch and sharding actions."""
    rank0 = [Action(0, Kind.UNSHARD), overlap(Action(0, F, 1), Action(3, B, 0)), Action(0, Kind.REDUCE_GRAD)]
    rank1 = [batch(Action(1, Kind.RECV_F, 0), Action(1, Kind.SEND_B, 0)), Action(1, F, 0), Action(2, F, 0)]
    pair = overlap(Action(1, F, 1), Action(2, B, 0))
    return [rank0, [*rank1, pair, pair]]


def test_a_table_gives_back_its_actions():
    actions = _odd_table()

    table = Table.build(actions, placement=(0, 1, 1, 0), num_microbatches=2)

    assert [tuple(rank) for rank in actions] == list(table)


def test_equal_tables_are_equal_and_hash_alike():
    one, two = (generate("one_f_one_b", num_ranks=3, num_microbatches=4) for _ in range(2))

    assert (one, hash(one), one.digest) == (two, hash(two), two.digest)


@pytest.mark.parametrize(
    "change",
    [
        {"placement": (0, 1, 0, 1)},
        {"num_microbatches": 3},
        {"num_chains": 2},
    ],
)
def test_tables_that_differ_in_anything_are_unequal(change):
    given = {"placement": (0, 1, 1, 0), "num_microbatches": 2} | change
    table = Table.build(_odd_table(), placement=(0, 1, 1, 0), num_microbatches=2)

    assert table != Table.build(_odd_table(), **given)


def test_a_batch_and_its_separate_parts_are_unequal():
    parts = (Action(0, Kind.SEND_F, 0), Action(0, Kind.RECV_B, 0))

    assert Table.build([[batch(*parts)], []], placement=(0, 1), num_microbatches=1) != Table.build(
        [parts, []], placement=(0, 1), num_microbatches=1
    )


def test_arrays_cannot_be_written():
    table = generate("gpipe", num_ranks=2, num_microbatches=2)

    with pytest.raises(ValueError, match="read-only"):
        table.stages[0] = 3


def test_a_row_takes_at_most_12_bytes():
    table = lower(generate("gpipe", num_ranks=8, num_microbatches=64))

    assert table.num_bytes <= 12 * table.num_entries


def test_repr_shows_size_and_actions():
    text = repr(generate("gpipe", num_ranks=2, num_microbatches=2))

    assert text == (
        "Table(p=2, stages=2, m=2, placement=loop, entries=8)\n"
        "  rank 0: 0F0 0F1 0B0 0B1\n"
        "  rank 1: 1F0 1F1 1B0 1B1"
    )


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (Action(-1, F, 0), "cannot be stored"),
        (Action(0, F, -2), "cannot be stored"),
        (Action(0, F, 2**40), "cannot be stored"),
        (Action(0, F), "cannot be stored"),
        (Action(0, Kind.UNSHARD, 1), "take no microbatch"),
    ],
)
def test_what_cannot_be_stored_is_refused(action, reason):
    with pytest.raises(BadTableError, match=reason):
        Table.build([[action]], placement=(0,), num_microbatches=1)


@pytest.mark.parametrize(
    "given",
    [
        {"placement": (0, 2)},
        {"placement": ()},
        {"num_microbatches": 0},
        {"num_chains": 3},
    ],
)
def test_impossible_sizes_are_refused(given):
    with pytest.raises(BadTableError):
        Table.build([[], []], **({"placement": (0, 1), "num_microbatches": 1} | given))


def test_communication_can_be_taken_away_again():
    table = generate("one_f_one_b", num_ranks=3, num_microbatches=4)

    assert table == without_communication(lower(table))


def test_chains_end_where_the_next_begins():
    table = Table.build([[], []], placement=(0, 1, 1, 0), num_microbatches=1, num_chains=2)

    assert [table.has_next(stage) for stage in range(4)] == [True, False] * 2


def test_placements():
    assert (loop(3, stages_per_rank=2), v(3)) == ((0, 1, 2, 0, 1, 2), (0, 1, 2, 2, 1, 0))
    assert stages_of(v(3), rank=1) == (1, 4)
    assert [name_of(p, num_ranks=2) for p in ((0, 1, 0, 1), (0, 1, 1, 0), (1, 0))] == [
        "loop",
        "v",
        "explicit",
    ]


def test_explicit_placements_are_checked():
    with pytest.raises(BadTableError, match="stage 1 is placed on rank 2"):
        explicit([0, 2], num_ranks=2)


def test_offsets_cover_all_rows():
    table = generate("gpipe", num_ranks=3, num_microbatches=2)

    assert np.array_equal([0, 4, 8, 12], table.offsets)


@pytest.mark.parametrize("name", ["offsets", "kinds", "groups", "stages", "microbatches"])
def test_no_array_can_be_written(name):
    array = getattr(generate("gpipe", num_ranks=2, num_microbatches=2), name)

    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def _of(*ranks, placement=(0, 1), m=3, num_chains=1):
    actions = [[Action.parse(word) for word in words.split()] for words in ranks]
    return Table.build(actions, placement=placement, num_microbatches=m, num_chains=num_chains)


DIFFERENT = {
    "microbatches": lambda: (_of("0F0", "1F0"), _of("0F0", "1F1")),
    "stages": lambda: (_of("0F0", "1F0"), _of("1F0", "1F0")),
    "kinds": lambda: (_of("0F0", "1F0"), _of("0F0", "1B0")),
    "who does it": lambda: (_of("0F0 1F0", ""), _of("0F0", "1F0")),
    "the number of ranks": lambda: (_of("0F0 1F0", "", placement=(0, 0)), _of("0F0 1F0", placement=(0, 0))),
    "what is one": lambda: (_of("0F0 1B0", ""), _of("(0F0;1B0)OVERLAP_F_B", "")),
    "the number of microbatches": lambda: (_of("0F0", "1F0"), _of("0F0", "1F0", m=4)),
    "chains": lambda: (_of("0F0", "1F0"), _of("0F0", "1F0", num_chains=2)),
}


@pytest.mark.parametrize("made", DIFFERENT.values(), ids=DIFFERENT)
def test_tables_that_differ_in_one_thing_have_different_digests(made):
    # made here: a table remembers its digest
    one, other = made()

    assert one != other
    assert one.digest != other.digest


def test_a_table_is_no_list():
    table = _of("0F0", "1F0")

    assert table != list(table)
    assert (table == "0F0") is False


@pytest.mark.parametrize("word", ["0SEND_F0", "1RECV_F0", "1SEND_B0", "0RECV_B0"])
def test_one_transfer_is_communication_and_can_be_taken_away(word):
    table = _of(f"0F0 {word} 0UNSHARD", "1F0")

    assert table.has_communication
    assert without_communication(table) == _of("0F0 0UNSHARD", "1F0")
    assert not _of("0F0 0W0 0UNSHARD", "1F0").has_communication


def test_ranks_begin_at_0_and_end():
    table = _of("0F0", "1F0")

    assert (len(table), table[1]) == (2, (Action(1, F, 0),))
    for rank in (-1, 2):
        with pytest.raises(IndexError, match=f"rank {rank}; ranks are 0 … 1"):
            table[rank]


def test_a_table_has_ranks_and_chains():
    with pytest.raises(BadTableError, match="stage 0 is placed on rank 0"):
        Table.build([], placement=(0,), num_microbatches=1)
    with pytest.raises(BadTableError, match="2 stages cannot form 0 equal chains"):
        _of("0F0", "1F0", num_chains=0)


@pytest.mark.parametrize(("p", "more"), [(8, ""), (9, "\n  … 1 more rank"), (11, "\n  … 3 more ranks")])
def test_of_many_ranks_the_first_eight_are_shown(p, more):
    text = repr(generate("forward_only", num_ranks=p, num_microbatches=1))

    assert text.endswith(f"  rank 7: 7F0{more}")
    assert text.count("  rank ") == 8


@pytest.mark.parametrize(("m", "end"), [(12, "0F10 0F11"), (13, "0F10 0F11 …")])
def test_of_many_actions_the_first_twelve_are_shown(m, end):
    assert repr(generate("forward_only", num_ranks=1, num_microbatches=m)).endswith(end)


def test_the_largest_numbers_can_be_stored():
    largest = 2**31 - 2
    table = _of(f"{largest}F{largest} 0UNSHARD", "")

    assert table[0] == (Action(largest, F, largest), Action(0, Kind.UNSHARD))
    for action in (Action(largest + 1, F, 0), Action(0, F, largest + 1)):
        with pytest.raises(BadTableError, match=r"rank 1: stage .* cannot be stored"):
            Table.build([[], [action]], placement=(0,), num_microbatches=1)


@pytest.mark.parametrize(
    ("placement", "name"),
    [
        ((0, 1), "loop"),
        ((0, 1, 1, 0), "v"),
        ((0, 1, 0), "explicit"),
        ((0,), "explicit"),
        ((0, 0), "explicit"),
    ],
)
def test_a_placement_is_named_if_it_has_whole_laps(placement, name):
    assert name_of(placement, num_ranks=2) == name


@pytest.mark.parametrize("place", [loop, v])
def test_placements_have_ranks_and_stages(place):
    assert place(1, stages_per_rank=1) == (0,)
    for p, per_rank in ((0, 1), (1, 0)):
        with pytest.raises(BadTableError, match=f"got p={p}, v={per_rank}"):
            place(p, stages_per_rank=per_rank)


def test_the_first_and_the_last_stage_of_a_placement_are_checked():
    assert explicit([1, 0], num_ranks=2) == (1, 0)
    for ranks, stage in (([2, 0], 0), ([0, -1], 1)):
        with pytest.raises(BadTableError, match=f"stage {stage} is placed on rank {ranks[stage]}"):
            explicit(ranks, num_ranks=2)
