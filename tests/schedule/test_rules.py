"""Every finding about a faulty table is told once, with its place and its rows, also at a rank's first row."""

import pytest

from pipeconform.schedule import Rule, verify
from tests.schedule.in_words import table as _table

SAME_PAIR = "and its own backward are one overlapped pair; the backward needs its F"


def _told(*ranks, forward_only=False, in_flight=None, **shape):
    """The findings of the rules; deadlocks follow from many faults, and have tests of their own."""
    table = _table(*ranks, **shape)
    found = verify(table, forward_only=forward_only, max_in_flight_input=in_flight, per_rule=None)
    return [(v.rule.name, v.message, v.rows) for v in found if v.rule is not Rule.DEADLOCK]


def _early(row, late, other):
    """A finding about an order on one rank whose rows begin at 0; both actions are given with their positions."""
    first, second = (f"{action} (rank 0, position {position})" for action, position in (late, other))
    return ("ORDER", f"{first} comes before {second}, whose result it needs", (row, other[1]))


def test_the_first_number_after_the_last_stage_or_microbatch_does_not_exist():
    assert _told("0F0 2F0 3F0 0B0", "1F0 1F1 1F2 1B0") == [
        ("RANGE", "2F0 (rank 0, position 1): there is no such stage, they are 0 … 1", (1,)),
        ("RANGE", "3F0 (rank 0, position 2): there is no such stage, they are 0 … 1", (2,)),
        ("RANGE", "1F1 (rank 1, position 1): there is no such microbatch, they are 0 … 0", (5,)),
        ("RANGE", "1F2 (rank 1, position 2): there is no such microbatch, they are 0 … 0", (6,)),
    ]


def test_every_action_on_a_foreign_rank_is_told():
    whose = "the placement gives this stage to rank"

    assert _told("1F0 0F0 1B0", "0B0") == [
        ("PLACEMENT", f"1F0 (rank 0, position 0): {whose} 1", (0,)),
        ("PLACEMENT", f"1B0 (rank 0, position 2): {whose} 1", (2,)),
        ("PLACEMENT", f"0B0 (rank 1, position 0): {whose} 0", (3,)),
    ]


def test_what_is_done_several_times_is_told_by_kind_stage_and_microbatch_with_at_most_four_places():
    told = _told("0F0 0F0 0F0 0F0 0F0 0B0 0B0", "1F0 1F0 1B0")

    places = ", ".join(f"0F0 (rank 0, position {position})" for position in range(4))
    assert told == [
        ("MULTISET", f"5 times the same: {places}", (0, 1, 2, 3, 4)),
        ("MULTISET", "2 times the same: 1F0 (rank 1, position 0), 1F0 (rank 1, position 1)", (7, 8)),
        ("MULTISET", "2 times the same: 0B0 (rank 0, position 5), 0B0 (rank 0, position 6)", (5, 6)),
    ]


@pytest.mark.parametrize("kind", ["F", "I", "W"])
def test_no_part_of_a_split_backward_is_done_twice(kind):
    words = ["0F0", "0I0", "0W0"]
    words.insert(words.index(f"0{kind}0"), f"0{kind}0")
    ((rule, message, _),) = _told(" ".join(words), placement=(0,))

    assert (rule, message.partition(":")[0]) == ("MULTISET", "2 times the same")


def test_what_is_incomplete_is_told_with_the_rows_that_there_are():
    assert _told("0B0", "1F0 1B0 1W0") == [
        ("MULTISET", "stage 0, microbatch 0: it has no F", (0,)),
        (
            "MULTISET",
            "stage 1, microbatch 0: it has both B and W: its weight gradient is computed twice",
            (1, 2, 3),
        ),
    ]
    assert _told("0F0 0W0", "1F0", forward_only=True) == [
        ("MULTISET", "stage 0, microbatch 0: it has a backward in a table that only evaluates", (0, 1))
    ]


def test_every_microbatch_of_every_stage_is_complete():
    stages_and_microbatches = [(stage, k) for stage in range(2) for k in range(3)]

    assert _told("", "", m=3, forward_only=True) == [
        ("MULTISET", f"stage {stage}, microbatch {k}: it has no F", ())
        for stage, k in stages_and_microbatches
    ]


def test_a_first_action_of_a_rank_can_be_too_early():
    assert _told("0B0 0F0", placement=(0,)) == [_early(0, ("0B0", 0), ("0F0", 1))]
    assert _told("0B0 0F0 1F0 1B0", placement=(0, 0)) == [
        _early(0, ("0B0", 0), ("0F0", 1)),
        _early(0, ("0B0", 0), ("1B0", 3)),
    ]
    assert _told("0B0 0F0 0SEND_F0 0RECV_B0", "1RECV_F0 1F0 1B0 1SEND_B0") == [
        _early(0, ("0B0", 0), ("0F0", 1)),
        _early(0, ("0B0", 0), ("0RECV_B0", 3)),
    ]


def test_what_is_too_early_for_one_microbatch_is_told_for_each():
    assert _told("0B0 0B1 0F0 0F1", placement=(0,), m=2) == [
        _early(0, ("0B0", 0), ("0F0", 2)),
        _early(1, ("0B1", 1), ("0F1", 3)),
    ]


def test_a_split_backward_follows_that_of_the_next_stage_too():
    in_turn = "0F0 1F0 1I0 0I0 1W0 0W0"

    assert _told(in_turn, placement=(0, 0)) == []
    assert _told("0F0 1F0 0I0 1I0 1W0 0W0", placement=(0, 0)) == [_early(2, ("0I0", 2), ("1I0", 3))]


def test_stages_of_different_chains_need_nothing_of_each_other():
    """Stages 0 and 1 are one chain, 2 and 3 another: 2F0 may come before 1F0, and 3B0 may not come after 2B0."""
    shape = {"placement": (0, 0, 0, 0), "num_chains": 2}

    assert _told("2F0 3F0 0F0 1F0 1B0 0B0 3B0 2B0", **shape) == []
    assert _told("2F0 3F0 0F0 1F0 1B0 0B0 2B0 3B0", **shape) == [_early(6, ("2B0", 6), ("3B0", 7))]


def test_a_pair_of_a_forward_and_its_own_backward_is_none_and_others_are():
    pairs = "(0F0;0B0)OVERLAP_F_B (0F1;0B1)OVERLAP_F_B"

    assert _told(pairs, placement=(0,), m=2) == [
        ("ORDER", f"0F0 (rank 0, position 0) {SAME_PAIR}", (0, 1)),
        ("ORDER", f"0F1 (rank 0, position 2) {SAME_PAIR}", (2, 3)),
    ]
    assert _told("0F0 (0F1;0B0)OVERLAP_F_B 0B1", placement=(0,), m=2) == []
    assert _told("0F0 1F0 (0F1;1B0)OVERLAP_F_B 0B0 1F1 1B1 0B1", placement=(0, 0), m=2) == []


def test_transfers_are_matched_in_both_directions():
    never = [("MATCHING", f"rank {word[0]} never does {word}", ()) for word in ("1RECV_F0", "0RECV_B0")]

    assert _told("0F0 0SEND_F0 0B0", "1F0 1B0 1SEND_B0") == never
    assert _told("0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0") == [
        ("MATCHING", "2 times the same: 0SEND_F0 (rank 0, position 1), 0SEND_F0 (rank 0, position 2)", (1, 2))
    ]


def test_the_ends_of_a_pipeline_send_to_nobody_and_receive_from_nobody():
    nobody = "no other rank is at the other end"
    words = ("0RECV_F0 0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0", "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0")

    assert _told(*words) == [
        ("MATCHING", f"1SEND_F0 (rank 1, position 2): {nobody}", (8,)),
        ("MATCHING", f"0RECV_F0 (rank 0, position 0): {nobody}", (0,)),
        ("MATCHING", f"0SEND_B0 (rank 0, position 5): {nobody}", (5,)),
        ("MATCHING", f"1RECV_B0 (rank 1, position 3): {nobody}", (9,)),
    ]


def test_gradients_cross_only_if_there_are_backwards():
    evaluated = ("0F0 0SEND_F0", "1RECV_F0 1F0")

    assert _told(*evaluated, forward_only=True) == []
    assert [message for rule, message, _ in _told(*evaluated) if rule == "MATCHING"] == [
        "rank 1 never does 1SEND_B0",
        "rank 0 never does 0RECV_B0",
    ]


def test_every_rank_that_holds_too_much_is_told_once_where_it_first_does():
    words = ("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2", "2F0 2F1 2F2 2B0 2B1 2B2")

    def held(action, rank, number, bound):
        where = f"after {action} (rank {rank}, position {action[-1]})"
        return f"{where} rank {rank} holds {number} activations up to I; its bound is {bound}"

    assert _told(*words, placement=(0, 1, 2), m=3, in_flight=[1, 1, 2]) == [
        ("IN_FLIGHT", held("0F1", 0, 2, 1), (1,)),
        ("IN_FLIGHT", held("2F2", 2, 3, 2), (14,)),
    ]
    assert _told(*words, placement=(0, 1, 2), m=3, in_flight=[3, 1, 3]) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("0UNSHARD 0F0 0B0 0RESHARD", []),
        ("0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0RESHARD 0REDUCE_GRAD", []),
        ("0F0 0B0 0REDUCE_GRAD", []),
        (
            "0UNSHARD 0F0 0RESHARD 0B0",
            [("0B0 (rank 0, position 3): the stage's parameters are not gathered at this point", (3,))],
        ),
        (
            "0RESHARD 0UNSHARD 0F0 0B0 0RESHARD",
            [("0RESHARD (rank 0, position 0): the stage's parameters are not gathered at this point", (0,))],
        ),
        (
            "0UNSHARD 0F0 0UNSHARD 0B0",
            [
                ("0UNSHARD (rank 0, position 2): gathered already by 0UNSHARD (rank 0, position 0)", (2, 0)),
                ("0UNSHARD (rank 0, position 2): never freed again", (2,)),
            ],
        ),
        (
            "0F0 0I0 0REDUCE_GRAD 0W0 0REDUCE_GRAD",
            [
                (
                    "0REDUCE_GRAD (rank 0, position 2) comes before 0W0 (rank 0, position 3), whose gradient it misses",
                    (2, 3),
                ),
                (
                    "0REDUCE_GRAD (rank 0, position 4): reduced already by 0REDUCE_GRAD (rank 0, position 2)",
                    (4, 2),
                ),
            ],
        ),
    ],
)
def test_parameters_are_gathered_used_and_freed_in_turn_and_reduced_once_at_the_end(words, told):
    assert _told(words, placement=(0,)) == [("SHARDING", *one) for one in told]


def test_stages_are_sharded_one_by_one():
    """Stage 1 has no sharding actions, so it is not judged, and what stage 0 reduces misses nothing of it."""
    assert _told("0UNSHARD 0F0 1F0 1B0 0B0 0RESHARD 0REDUCE_GRAD", placement=(0, 0)) == []
    assert _told("0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD", placement=(0, 0)) == []
    assert _told("1UNSHARD 0UNSHARD 0F0 1F0 1B0 0B0", placement=(0, 0)) == [
        ("SHARDING", f"{stage}UNSHARD (rank 0, position {1 - stage}): never freed again", (1 - stage,))
        for stage in (1, 0)
    ]


def test_what_another_rank_computes_later_is_no_gradient_that_a_reduction_misses():
    assert _told("0F0 0B0 0REDUCE_GRAD", "1F0 1B0 1REDUCE_GRAD") == []
    assert {rule for rule, *_ in _told("0F0 0B0 0REDUCE_GRAD", "0B0 1F0 1B0")} == {"PLACEMENT", "MULTISET"}
