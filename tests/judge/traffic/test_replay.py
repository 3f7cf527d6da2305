"""Programs that gloo completed are replayed under the rules of NCCL, and circles are proved."""

from __future__ import annotations

import pytest

from pipeconform.judge.traffic.messages import exchange
from pipeconform.judge.traffic.replay import circle
from tests.facts import tells
from tests.judge.recorded import of_ranks

FREE = {
    "one message": ("S1", "R0"),
    "there and back": ("S1 R1", "R0 S0"),
    "first sends on one side, first receives on the other": ("s1 r1 w0 w1", "r0 s0 w0 w1"),
    "an exchange in batches": ("[s1 r1] w0 w1", "[s0 r0] w0 w1"),
    "a ring in batches": ("[s1 r2] w0 w1", "[s2 r0] w0 w1", "[s0 r1] w0 w1"),
    "a chain": ("S1 R1", "R0 S2 R2 S0", "R1 S1"),
    "single messages of two pairs in different orders": ("s1 s2 w0 w1", "r0 w0", "r0 w0"),
    "collectives and messages on communicators of their own": ("S1 C", "c R0 w0"),
    "what nobody waits for": ("s1", "r0"),
    "unmatched operations are another matter": ("s1 s1 r1", "r0 r0 r0"),
    "a batch and a single message": ("[s1] S1 w0", "r0 [r0] w0 w1"),
    "collectives to which not all members come are another matter, too": ("C S1", "R0"),
}
IN_ORDER = {
    "both begin with the send": ("s1 r1 w0 w1", "s0 r0 w0 w1"),
    "both begin with the receive": ("r1 s1 w1 w0", "r0 s0 w1 w0"),
    "tags out of order": ("s1#1 s1#2 w0 w1", "r0#2 r0#1 w1 w0"),
    "batches of two pairs in different orders": (
        "[s1] [s2] w0 w1",
        "[s2] [r0] w0 w1",
        "[r0] [r1] w1 w0",
    ),
    "a collective behind a batch on one rank, before it on the other": ("[s1] c w0 w1", "c [r0] w0 w1"),
}
ALWAYS = {
    "both wait for their sends": ("S1 R1", "S0 R0"),
    "both wait for their sends, and one for nothing else": ("S1 R1", "S0 r0"),
    "a ring of sends": ("S1 R2", "S2 R0", "S0 R1"),
    "a receive that is posted after a wait for what comes later": ("R1 S1", "R0 S0"),
    "a collective for which the first of the others waits": ("C s1", "R0 C", "C"),
    "a collective for which the last of the others waits": ("C s2", "C", "R0 C"),
    "a collective for which the first of all waits": ("R1 C", "C s0", "C"),
    "the last of several collectives": ("C S1 C", "C C R0", "C C"),
    "the first of several collectives": ("S1 C C", "C R0 C", "C C"),
}


@pytest.mark.parametrize("texts", FREE.values(), ids=FREE)
def test_a_program_that_gets_through_is_left_alone(texts: tuple[str, ...]) -> None:
    found = exchange(of_ranks(*texts))

    assert circle(found, ordered=False) is None
    assert circle(found) is None


@pytest.mark.parametrize("texts", IN_ORDER.values(), ids=IN_ORDER)
def test_what_only_order_forbids_is_found_in_order_only(texts: tuple[str, ...]) -> None:
    found = exchange(of_ranks(*texts))

    assert circle(found, ordered=False) is None
    assert circle(found) is not None


@pytest.mark.parametrize("texts", ALWAYS.values(), ids=ALWAYS)
def test_what_synchronous_sends_forbid_is_found_without_order(texts: tuple[str, ...]) -> None:
    found = exchange(of_ranks(*texts))

    assert circle(found, ordered=False) is not None
    assert circle(found) is not None


def test_the_proof_names_both_ends_of_every_step() -> None:
    found = circle(exchange(of_ranks("s1 r1 w0 w1", "s0 r0 w0 w1")))

    assert found is not None
    assert found.operands == ((0, 1), (1, 1))
    for own, other, sentence in zip((0, 1), (1, 0), found.sentences, strict=True):
        held_up = (f"rank {own}", "receive", f"from rank {other}", "operation 1")
        first = ("only after its send", f"to rank {other}", "operation 0")
        needed = (f"needs rank {other}'s receive", f"from rank {own}", "operation 1")
        assert tells(sentence, *held_up, *first, *needed)


def test_a_wait_in_a_circle_says_what_comes_after_it() -> None:
    found = circle(exchange(of_ranks("S1 R1", "S0 R0")), ordered=False)

    assert found is not None
    assert sorted(found.operands) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (own, number), sentence in zip(found.operands, found.sentences, strict=True):
        what = "not reached its receive" if number else "waits for its send"
        peer = f"{'from' if number else 'to'} rank {1 - own}"
        assert tells(sentence, f"rank {own}", what, "float32[1]", peer, f"operation {number}")


def test_what_belongs_to_a_batch_is_said_to() -> None:
    found = circle(exchange(of_ranks("[s1] c w0 w1", "c [r0] w0 w1")))

    assert found is not None
    batched = [sentence.count("(in a batch)") for sentence in found.sentences]
    assert batched == [2, 1]
    assert found.sentences[0].startswith(
        "rank 0 serves its allreduce of float32[1], operation 1 only after its send"
    )
