"""Each rule catches the fault it is for and proves it in words."""

import pytest

from pipeconform.errors import UsageError
from pipeconform.schedule import Delivery, Rule, Table, generate, lower, verify
from tests.facts import tells
from tests.schedule.in_words import table

GOOD = ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0")

FAULTS = {
    "stage out of range": (table("0F0 5F0 0B0", "1F0 1B0"), Rule.RANGE, "5F0 (rank 0, position 1)"),
    "microbatch out of range": (table("0F0 0F1 0B0", "1F0 1B0"), Rule.RANGE, "they are 0 … 0"),
    "wrong rank": (table("0F0 0B0 1B0", "1F0"), Rule.PLACEMENT, "gives this stage to rank 1"),
    "send on the wrong rank": (
        table("0F0 0RECV_B0 0B0", "0SEND_F0 1RECV_F0 1F0 1B0 1SEND_B0"),
        Rule.PLACEMENT,
        "0SEND_F0 (rank 1",
    ),
    "F missing": (table("0F0 0B0", "1B0"), Rule.MULTISET, "stage 1, microbatch 0: it has no F"),
    "F twice": (table("0F0 0F0 0B0", "1F0 1B0"), Rule.MULTISET, "2 times the same: 0F0 (rank 0, position 0)"),
    "B twice": (table("0F0 0B0 0B0", "1F0 1B0"), Rule.MULTISET, "2 times the same: 0B0"),
    "backward missing": (table("0F0", "1F0 1B0"), Rule.MULTISET, "neither B nor I"),
    "B and I": (table("0F0 0B0 0I0 0W0", "1F0 1B0"), Rule.MULTISET, "both B and I"),
    "B and W": (table("0F0 0B0 0W0", "1F0 1B0"), Rule.MULTISET, "both B and W"),
    "W left over": (table("0F0 0I0", "1F0 1B0"), Rule.MULTISET, "an I and no W"),
    "W alone": (table("0F0 0W0", "1F0 1B0"), Rule.MULTISET, "a W and no I"),
    "B before F": (table("0F0 0B0", "1B0 1F0"), Rule.ORDER, "1B0 (rank 1, position 0) comes before 1F0"),
    "I before F": (table("0I0 0F0 0W0", "1F0 1B0"), Rule.ORDER, "0I0 (rank 0"),
    "W before I": (table("0F0 0W0 0I0", "1F0 1B0"), Rule.ORDER, "0W0 (rank 0, position 1) comes before 0I0"),
    "pair with its own backward": (
        table("0F0 0B0", "(1F0;1B0)OVERLAP_F_B"),
        Rule.ORDER,
        "the backward needs its F",
    ),
    "local stages forwards": (
        table("1F0 0F0 1B0 0B0", placement=(0, 0)),
        Rule.ORDER,
        "1F0 (rank 0, position 0) comes before 0F0",
    ),
    "local stages backwards": (
        table("0F0 1F0 0B0 1B0", placement=(0, 0)),
        Rule.ORDER,
        "0B0 (rank 0, position 2) comes before 1B0",
    ),
    "send missing": (table("0F0 0RECV_B0 0B0", GOOD[1]), Rule.MATCHING, "rank 0 never does 0SEND_F0"),
    "receive missing": (table(GOOD[0], "1F0 1B0 1SEND_B0"), Rule.MATCHING, "rank 1 never does 1RECV_F0"),
    "send twice": (
        table("0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0", GOOD[1]),
        Rule.MATCHING,
        "2 times the same: 0SEND_F0",
    ),
    "send from the last stage": (
        table(GOOD[0], "1RECV_F0 1F0 1SEND_F0 1B0 1SEND_B0"),
        Rule.MATCHING,
        "no other rank is at the other end",
    ),
    "send between local stages": (
        table("0F0 0SEND_F0 1RECV_F0 1F0 1B0 0B0", placement=(0, 0)),
        Rule.MATCHING,
        "no other rank is at the other end",
    ),
    "send between chains": (
        table("0F0 0B0 1F0 1B0", "2F0 2B0 3F0 3B0 1SEND_F0", placement=(0, 0, 1, 1), num_chains=2),
        Rule.MATCHING,
        "no other rank",
    ),
    "send before its computation": (
        table("0SEND_F0 0F0 0RECV_B0 0B0", GOOD[1]),
        Rule.ORDER,
        "0SEND_F0 (rank 0, position 0) comes before 0F0",
    ),
    "receive after its computation": (
        table(GOOD[0], "1F0 1RECV_F0 1B0 1SEND_B0"),
        Rule.ORDER,
        "1F0 (rank 1, position 0) comes before 1RECV_F0",
    ),
    "computed before gathered": (
        table("0F0 0UNSHARD 0B0 0RESHARD", "1F0 1B0"),
        Rule.SHARDING,
        "0F0 (rank 0, position 0): the stage's parameters are not gathered",
    ),
    "gathered twice": (
        table("0UNSHARD 0UNSHARD 0F0 0B0 0RESHARD", "1F0 1B0"),
        Rule.SHARDING,
        "gathered already",
    ),
    "never freed": (table("0UNSHARD 0F0 0B0", "1F0 1B0"), Rule.SHARDING, "never freed"),
    "reduced before the last backward": (
        table("0F0 0REDUCE_GRAD 0B0", "1F0 1B0"),
        Rule.SHARDING,
        "whose gradient it misses",
    ),
    "reduced twice": (
        table("0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD", "1F0 1B0"),
        Rule.SHARDING,
        "reduced already",
    ),
    "computations in a circle": (
        table("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", m=2),
        Rule.DEADLOCK,
        "rank 0 cannot start 0B0 because rank 1 has not run 1B0; "
        "rank 1 cannot start 1F1 because rank 0 has not run 0F1",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_its_rule_and_told(fault):
    faulty, rule, words = FAULTS[fault]

    found = verify(faulty)

    assert [words in v.message for v in found if v.rule is rule].count(True) >= 1, found


def test_a_good_table_has_no_violation():
    assert verify(table(*GOOD)) == ()


def test_the_small_number_of_wrong_things_is_all_that_is_reported():
    assert [v.rule for v in verify(table("0F0 0B0 0B0", "1F0 1B0"))] == [Rule.MULTISET]


def test_evaluation_has_no_backward():
    forward_only = table("0F0", "1F0")

    assert verify(forward_only, forward_only=True) == ()
    assert Rule.MULTISET in {v.rule for v in verify(forward_only)}
    assert "only evaluates" in verify(table("0F0", "1F0 1B0"), forward_only=True)[0].message


def test_communication_can_be_required():
    assert "never does 0SEND_F0" in verify(table("0F0 0B0", "1F0 1B0"), communication=True)[0].message


def test_in_flight_bounds():
    """SCH-3"""
    gpipe = generate("gpipe", num_ranks=2, num_microbatches=3)

    (found,) = verify(gpipe, max_in_flight_input=[2, 3])

    assert (found.rule, found.rows) == (Rule.IN_FLIGHT, (2,))
    assert tells(found.message, "0F2", "rank 0", "position 2", "3 activations up to I", "bound", "2")


def test_weights_left_waiting_count_up_to_w_only():
    split = table("0F0 0I0 0F1 0I1 0W0 0W1", placement=(0,), m=2)

    assert verify(split, max_in_flight_input=[1], max_in_flight_weight=[2]) == ()
    assert "up to W" in verify(split, max_in_flight_weight=[1])[0].message


def test_bounds_must_be_one_per_rank():
    with pytest.raises(UsageError, match="1 in-flight bounds given for 2 ranks"):
        verify(table(*GOOD), max_in_flight_input=[1])


def test_long_lists_are_cut_with_their_number():
    empty = Table.build([[]], placement=(0,), num_microbatches=20)

    found = verify(empty)

    assert len(found) == 5
    assert tells(found[-1].message, "stage 0", "microbatch 4", "no F", "35 more")


def test_all_of_a_long_list_is_reported_on_request():
    empty = Table.build([[]], placement=(0,), num_microbatches=20)

    assert len(verify(empty, per_rule=None)) == 40
    (first,) = verify(empty, per_rule=1)
    assert tells(first.message, "stage 0", "microbatch 0", "no F", "39 more")


# Deadlocks: one table per delivery that is the first to forbid it.

BLOCKED_SENDS = table(
    # Both ranks send before they post what the other sends.
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    m=2,
)
CROSSED_IN_ORDER = table(
    # Each rank posts its receive first and then sends: fine unless the pair is served in order.
    "0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    m=2,
)
BATCHED = table(
    "0F0 0SEND_F0 0F1 (0SEND_F1;0RECV_B0)BATCH 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1B0 (1SEND_B0;1RECV_F1)BATCH 1F1 1B1 1SEND_B1",
    m=2,
)


IN_TURNS = table(
    # Rank 0 posts what rank 2 sends last before it sends to rank 1: fine unless all of a rank's transfers wait in line.
    "0F0 0SEND_F0 0F1 3RECV_F0 0SEND_F1 3F0 3RECV_F1 3F1",
    "1RECV_F0 1F0 1RECV_F1 1F1 1SEND_F0 1SEND_F1",
    "2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1",
    placement=(0, 1, 2, 0),
    m=2,
)


def _deliveries(judged):
    return {v.delivery for v in verify(judged)}


def test_sends_that_block_each_other():
    found = {v.delivery: v.message.split("; ") for v in verify(BLOCKED_SENDS)}

    assert set(found) == set(Delivery) - {Delivery.BUFFERED}
    first, second = found[Delivery.SYNCHRONOUS]
    assert tells(first, "rank 0", "cannot finish 0SEND_F1", "rank 1", "not posted 1RECV_F1")
    assert tells(second, "rank 1", "cannot finish 1SEND_B0", "rank 0", "not posted 0RECV_B0")
    for delivery in (Delivery.ORDERED, Delivery.COMMUNICATOR):
        first, second = found[delivery]
        assert tells(first, "rank 0", "0SEND_F1 before 0RECV_B0", "1RECV_F1 is not due", "rank 1")
        assert tells(second, "rank 1", "1SEND_B0 before 1RECV_F1", "0RECV_B0 is not due", "rank 0")


@pytest.mark.parametrize(
    ("strictest", "found"),
    [
        (Delivery.BUFFERED, []),
        (Delivery.SYNCHRONOUS, [Delivery.SYNCHRONOUS]),
        (Delivery.ORDERED, [Delivery.ORDERED, Delivery.SYNCHRONOUS]),
        (Delivery.COMMUNICATOR, [Delivery.COMMUNICATOR, Delivery.ORDERED, Delivery.SYNCHRONOUS]),
    ],
)
def test_deadlocks_are_judged_up_to_the_delivery_asked_for(strictest, found):
    assert [v.delivery for v in verify(BLOCKED_SENDS, strictest=strictest)] == found


def test_what_deadlocks_although_sends_wait_for_nobody_deadlocks_however_they_are_delivered():
    """Each rank waits for what the other sends after it has received that."""
    late = table("0F0 0RECV_B0 0B0 0SEND_F0", "1RECV_F0 1F0 1B0 1SEND_B0")

    assert [v.delivery for v in verify(late) if v.rule is Rule.DEADLOCK] == list(Delivery)[::-1]


def test_a_send_that_another_rank_repeats_waits_for_nothing():
    repeated = table("0F0 0SEND_F0 0RECV_B0 0B0", "0SEND_F0 1RECV_F0 1F0 1B0 1SEND_B0")

    assert {one.rule for one in verify(repeated)} == {Rule.PLACEMENT, Rule.MATCHING}


def test_receives_that_cross_in_order():
    assert {Delivery.ORDERED, Delivery.COMMUNICATOR} == _deliveries(CROSSED_IN_ORDER)


def test_a_receive_that_holds_up_what_its_rank_sends_to_another():
    (found,) = verify(IN_TURNS, forward_only=True)

    assert found.delivery is Delivery.COMMUNICATOR
    first, second, third = found.message.split("; ")
    assert tells(first, "rank 0", "3RECV_F0 before 0SEND_F1", "2SEND_F0 is not due", "rank 2")
    assert tells(second, "rank 2", "2RECV_F0 before 2SEND_F0", "1SEND_F0 is not due", "rank 1")
    assert tells(third, "rank 1", "1RECV_F1 before 1SEND_F0", "0SEND_F1 is not due", "rank 0")


def test_the_first_transfer_of_all_can_hold_others_up():
    """Rank 0 receives microbatch 0 first, and rank 1 sends it last."""
    crossed = table("1RECV_F0 1RECV_F1 1F0 1F1", "0F1 0SEND_F1 0F0 0SEND_F0", placement=(1, 0), m=2)

    found = {v.delivery: v.message for v in verify(crossed, forward_only=True)}

    proof = (
        "rank 0 serves 1RECV_F0 before 1RECV_F1, and 0SEND_F0 is not due on rank 1; "
        "rank 1 serves 0SEND_F1 before 0SEND_F0, and 1RECV_F1 is not due on rank 0"
    )
    assert set(found) == {Delivery.ORDERED, Delivery.COMMUNICATOR}
    assert all(sorted(told.split("; ")) == sorted(proof.split("; ")) for told in found.values())


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_v", "interleaved_one_f_one_b", "gpipe"])
@pytest.mark.parametrize("damage", [(0, 1), (1, 2), (3, 4)])
def test_the_numbers_of_ranks_do_not_matter(name, damage):
    """Two neighbouring actions are exchanged on a rank, and the table is judged with its ranks in either order."""
    v = 1 if name in ("one_f_one_b", "gpipe") else 2
    good = lower(generate(name, num_ranks=2, stages_per_rank=v, num_microbatches=4))
    for rank in range(2):
        ranks = [list(actions) for actions in good]
        one, other = damage
        ranks[rank][one], ranks[rank][other] = ranks[rank][other], ranks[rank][one]
        right = Table.build(ranks, placement=good.placement, num_microbatches=4)
        mirrored = Table.build(ranks[::-1], placement=[1 - r for r in good.placement], num_microbatches=4)
        told = [{(v.rule, v.delivery) for v in verify(judged, per_rule=None)} for judged in (right, mirrored)]
        assert told[0] == told[1]


def test_one_batch_on_either_side_undoes_the_deadlock():
    assert verify(BATCHED) == ()


def test_batches_can_deadlock_too():
    crossed = table(
        "0F0 0F1 (0SEND_F0;0RECV_B1)BATCH 0SEND_F1 0RECV_B0 0B0 0B1",
        "(1RECV_F0;1RECV_F1)BATCH 1F0 1F1 1B0 1B1 (1SEND_B0;1SEND_B1)BATCH",
        m=2,
    )

    found = {v.delivery: v.message for v in verify(crossed)}

    # Only in order: the second batch of rank 0 waits for 1SEND_B1, and rank 1 for 0SEND_F1 after it.
    assert {Delivery.ORDERED, Delivery.COMMUNICATOR} == set(found)
    assert "rank 0 serves 0RECV_B1 before 0SEND_F1, and 1SEND_B1 is not due" in found[Delivery.ORDERED]


def test_a_batch_with_a_send_nobody_posts_in_time():
    late = table(
        "0F0 0F1 (0SEND_F0;0SEND_F1)BATCH 0RECV_B0 0RECV_B1 0B0 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
        m=2,
    )

    found = {v.delivery: v.message for v in verify(late)}

    assert Delivery.BUFFERED not in found
    assert "1RECV_F1 is not due on rank 1; rank 1 has not reached 1RECV_F1" in found[Delivery.SYNCHRONOUS]


def test_a_circle_over_three_ranks_names_all_of_them():
    """Stages 0 to 3 on ranks 0, 1, 2, 0: rank 0 sends three times before it posts what comes round."""
    circle = table(
        "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 3RECV_F0 3F0 3RECV_F1 3F1 3RECV_F2 3F2",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_F2 1F2 1SEND_F2",
        "2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1 2RECV_F2 2F2 2SEND_F2",
        placement=(0, 1, 2, 0),
        m=3,
    )

    found = {v.delivery: v.message for v in verify(circle, forward_only=True)}

    proof = (
        "rank 0 cannot finish 0SEND_F2 because rank 1 has not posted 1RECV_F2; "
        "rank 1 cannot finish 1SEND_F1 because rank 2 has not posted 2RECV_F1; "
        "rank 2 cannot finish 2SEND_F0 because rank 0 has not posted 3RECV_F0"
    )
    assert found.pop(Delivery.SYNCHRONOUS) == proof
    assert set(found) == {Delivery.ORDERED, Delivery.COMMUNICATOR}
    for told in found.values():
        assert all(f"rank {rank} " in told for rank in range(3)), told


def test_violations_print_rule_delivery_and_proof():
    text = str(verify(CROSSED_IN_ORDER)[0])

    assert text.startswith("[SCH-5 deadlock under synchronous sends in order per communicator] rank 0 ")
    assert verify(CROSSED_IN_ORDER)[0].rule.requirement == "SCH-5"


def test_thousands_of_ranks_are_verified():
    assert verify(lower(generate("one_f_one_b", num_ranks=2000, num_microbatches=4))) == ()
