"""Tables whose sends are waited for: who waits, what is wrong with them, and that they run wherever the others do."""

import pytest

from pipeconform.errors import BadTableError
from pipeconform.schedule import (
    Action,
    Delivery,
    Kind,
    Rule,
    families,
    from_csv,
    generate,
    lower,
    simulate,
    to_csv,
    verify,
    with_waits,
    without_communication,
)
from pipeconform.schedule.families import Size
from tests.facts import tells
from tests.schedule.in_words import table


def told(judged):
    return [(found.rule, found.message, found.rows) for found in verify(judged)]


FIRST, LAST = "0F0 0SEND_F0 0RECV_B0 0B0 0WAIT_SEND_F0", "1RECV_F0 1F0 1B0 1SEND_B0 1WAIT_SEND_B0"


def test_an_output_is_waited_for_after_its_backward_and_a_gradient_at_the_end():
    waiting = with_waits(lower(generate("one_f_one_b", num_ranks=2, num_microbatches=2)))

    assert [" ".join(map(str, actions)) for actions in waiting] == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0WAIT_SEND_F0 0RECV_B1 0B1 0WAIT_SEND_F1",
        "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1WAIT_SEND_B0 1WAIT_SEND_B1",
    ]


def test_what_no_backward_follows_is_waited_for_at_the_end():
    waiting = with_waits(table("0F0 0SEND_F0 0F1 0SEND_F1", "1RECV_F0 1F0 1RECV_F1 1F1", m=2))

    assert " ".join(map(str, waiting[0])) == "0F0 0SEND_F0 0F1 0SEND_F1 0WAIT_SEND_F0 0WAIT_SEND_F1"
    assert verify(waiting, forward_only=True) == ()


def test_parts_of_pairs_and_batches_count():
    pair = with_waits(table("0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 (0F2;0B0)OVERLAP_F_B", "1F0", m=3))
    batch = with_waits(table("0F0 0F1 (0SEND_F0;0RECV_B0)BATCH 0I0", "1F0", m=2))

    assert " ".join(map(str, pair[0][-3:])) == "(0F2;0B0)OVERLAP_F_B 0WAIT_SEND_F0 0WAIT_SEND_F1"
    assert " ".join(map(str, batch[0][-2:])) == "0I0 0WAIT_SEND_F0"


def test_waits_are_put_in_once():
    with pytest.raises(BadTableError, match="has waits for sends already"):
        with_waits(with_waits(table("0F0 0SEND_F0", "1RECV_F0 1F0")))


@pytest.mark.parametrize(
    "item", [one for one in families() if not one.forward_only], ids=lambda item: item.name
)
def test_waits_change_no_verdict_no_time_and_no_file(item):
    size = next(
        one for one in (Size(2, 1, 4), Size(2, 2, 4), Size(4, 2, 4), Size(4, 1, 8)) if not item.refusal(one)
    )
    plain = generate(
        item.name,
        num_ranks=size.num_ranks,
        stages_per_rank=size.stages_per_rank,
        num_microbatches=size.num_microbatches,
    )
    lowered = lower(plain)
    waiting = with_waits(lowered)

    assert verify(waiting) == ()
    assert simulate(waiting).makespan == simulate(lowered).makespan
    assert without_communication(waiting) == plain
    assert waiting != lowered
    if plain.num_chains == 1:
        assert (
            from_csv(to_csv(waiting), placement=plain.placement, num_microbatches=size.num_microbatches)
            == waiting
        )


@pytest.mark.parametrize(
    ("ranks", "rule", "words"),
    [
        (
            (FIRST.replace(" 0WAIT_SEND_F0", ""), LAST),
            Rule.MATCHING,
            ("0SEND_F0 (rank 0, position 1)", "nothing waits"),
        ),
        ((f"{FIRST} 0WAIT_SEND_F0", LAST), Rule.MATCHING, ("2 times the same", "0WAIT_SEND_F0")),
        (
            (f"{FIRST} 0WAIT_SEND_B0", LAST),
            Rule.MATCHING,
            ("0WAIT_SEND_B0 (rank 0, position 5)", "never does 0SEND_B0"),
        ),
        (
            ("0F0 0WAIT_SEND_F0 0SEND_F0 0RECV_B0 0B0", LAST),
            Rule.ORDER,
            ("0WAIT_SEND_F0 (rank 0, position 1)", "before 0SEND_F0", "for which it waits"),
        ),
        ((FIRST, f"{LAST} 0WAIT_SEND_F0"), Rule.PLACEMENT, ("0WAIT_SEND_F0 (rank 1, position 5)",)),
        (
            (FIRST, LAST.replace("B0 1WAIT_SEND_B0", "B0 1WAIT_SEND_B7")),
            Rule.RANGE,
            ("1WAIT_SEND_B7", "no such"),
        ),
    ],
)
def test_a_wait_is_for_one_send_before_it_and_every_send_has_one(ranks, rule, words):
    found = told(table(*ranks))

    assert [tells(message, *words) for one, message, _ in found if one is rule].count(True) == 1, found


def test_a_wait_on_another_rank_waits_for_nothing():
    moved = told(table(FIRST.replace(" 0WAIT_SEND_F0", ""), f"{LAST} 0WAIT_SEND_F0"))

    assert {rule for rule, *_ in moved} == {Rule.PLACEMENT, Rule.MATCHING}


def test_a_table_without_waits_needs_none_and_one_without_sends_has_none():
    assert told(table(FIRST.replace(" 0WAIT_SEND_F0", ""), LAST.replace(" 1WAIT_SEND_B0", ""))) == []
    found = told(table("0F0 0B0 0WAIT_SEND_F0", "1F0 1B0"))
    assert [(rule, rows) for rule, _, rows in found] == [(Rule.MATCHING, (2,))]


# Both ranks send before they post what the other sends: who waits for the sends decides.
SENT = "0F0 0SEND_F0 0F1 0SEND_F1 {} 0RECV_B0 0B0 0RECV_B1 0B1 {}"
BACK = "1RECV_F0 1F0 1B0 1SEND_B0 {} 1RECV_F1 1F1 1B1 1SEND_B1 {}"
LATE = table(
    SENT.format("", "0WAIT_SEND_F0 0WAIT_SEND_F1"), BACK.format("", "1WAIT_SEND_B0 1WAIT_SEND_B1"), m=2
)
EARLY = table(
    SENT.format("0WAIT_SEND_F1", "0WAIT_SEND_F0"), BACK.format("1WAIT_SEND_B0", "1WAIT_SEND_B1"), m=2
)


def test_a_send_that_is_waited_for_later_holds_nobody_up():
    """Unless transfers are served in order: then those behind it are held up, not its rank."""
    found = {one.delivery: one.message for one in verify(LATE)}

    assert set(found) == {Delivery.ORDERED, Delivery.COMMUNICATOR}
    for message in found.values():
        assert "0SEND_F1 before 0RECV_B0" in message
        assert "1SEND_B0 before 1RECV_F1" in message


def test_waits_hold_their_ranks_up():
    found = {one.delivery: one.message.split("; ") for one in verify(EARLY)}

    assert set(found) == set(Delivery) - {Delivery.BUFFERED}
    first, second = found[Delivery.SYNCHRONOUS]
    assert tells(first, "rank 0", "cannot finish 0WAIT_SEND_F1", "rank 1", "not posted 1RECV_F1")
    assert tells(second, "rank 1", "cannot finish 1WAIT_SEND_B0", "rank 0", "not posted 0RECV_B0")


def test_beside_a_batch_a_wait_says_what_is_not_due():
    held = table(
        "0F0 0F1 0SEND_F1 0WAIT_SEND_F1 0SEND_F0 0WAIT_SEND_F0 0RECV_B0 0RECV_B1 0B0 0B1",
        "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1B1 (1SEND_B0;1SEND_B1)BATCH 1WAIT_SEND_B0 1WAIT_SEND_B1",
        m=2,
    )

    found = {one.delivery: one.message.split("; ") for one in verify(held)}

    first, _, third, _ = found[Delivery.SYNCHRONOUS]
    assert tells(first, "rank 0", "cannot finish 0WAIT_SEND_F1", "1RECV_F1 is not due", "rank 1")
    assert tells(third, "rank 1", "cannot start 1F0", "0SEND_F0 is not due", "rank 0")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("0F0 0B0 0REDUCE_GRAD 0WAIT_REDUCE_GRAD", None),
        ("0F0 1F0 1B0 1REDUCE_GRAD 0B0 1WAIT_REDUCE_GRAD 0REDUCE_GRAD 0WAIT_REDUCE_GRAD", None),
        ("0F0 0B0 0REDUCE_GRAD", None),
        (
            "0F0 0B0 0WAIT_REDUCE_GRAD",
            ("0WAIT_REDUCE_GRAD (rank 0, position 2)", "no reduction", "begun before"),
        ),
        (
            "0F0 0B0 0WAIT_REDUCE_GRAD 0REDUCE_GRAD",
            ("0WAIT_REDUCE_GRAD (rank 0, position 2)", "no reduction"),
        ),
        (
            "0F0 0B0 0REDUCE_GRAD 0WAIT_REDUCE_GRAD 0WAIT_REDUCE_GRAD",
            ("0WAIT_REDUCE_GRAD (rank 0, position 4)", "already by 0WAIT_REDUCE_GRAD (rank 0, position 3)"),
        ),
        (
            "0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD 0WAIT_REDUCE_GRAD",
            ("1REDUCE_GRAD (rank 0, position 3)", "nothing waits"),
        ),
    ],
)
def test_reductions_that_are_waited_for_are_waited_for_once_after_they_began(words, expected):
    stages = 2 if "1F0" in words else 1

    found = told(table(words, placement=(0,) * stages))

    assert len(found) == (expected is not None), found
    for rule, message, _ in found:
        assert rule is Rule.SHARDING
        assert tells(message, *expected)


def test_kinds_say_what_they_are_for():
    assert Action.parse("3WAIT_SEND_B7") == Action(3, Kind.WAIT_SEND_B, 7)
    assert Action.parse("3WAIT_REDUCE_GRAD") == Action(3, Kind.WAIT_REDUCE_GRAD)
