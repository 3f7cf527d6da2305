"""What proves a deadlock, and that nothing less does."""

import pytest
from msgspec import structs

from pipeconform.ranks.standing import Standing, Wait, deadlocked


def receive(peer, *, nth=1, tag=0, **others):
    return Wait(words="", peers=(peer,), number=0, name="recv_", group="g", tag=tag, nth=nth, **others)


def send(peer, *, nth=1, **others):
    return Wait(
        words="", peers=(peer,), number=0, name="send", group="g", nth=nth, **{"rendezvous": True, **others}
    )


def collective(*peers, nth=1, name="barrier", **others):
    return Wait(words="", peers=peers, number=0, name=name, group="g", nth=nth, **others)


def standing(wait, *, transfers=(), collectives=(), **others):
    fields = {"recorded": True, "alone": True, "since": 5.0, **others}
    return Standing(wait=wait, transfers=transfers, collectives=collectives, **fields)


def proved(*rounds):
    """Whether rounds of standings, a second apart, prove it; one round stands for two that are the same."""
    first, second = rounds if len(rounds) == 2 else rounds * 2
    early = {r: structs.replace(one, began=10.0, ended=10.1) for r, one in first.items()}
    late = {r: structs.replace(one, began=11.0, ended=11.1) for r, one in second.items()}
    return deadlocked(early, late)


IN_HARNESS = structs.replace(standing(Wait(words="barrier", peers=(1,))), in_harness=True)

BOTH_RECEIVE = {0: standing(receive(1)), 1: standing(receive(0))}

PROOFS = {
    "both receive": BOTH_RECEIVE,
    "both send": {0: standing(send(1)), 1: standing(send(0))},
    "a circle of three": {0: standing(receive(1)), 1: standing(receive(2)), 2: standing(receive(0))},
    "one waits for a circle": {
        0: standing(receive(1)),
        1: standing(receive(0)),
        2: standing(send(0)),
    },
    "a receive more than there were sends": {
        0: standing(receive(1, nth=3)),
        1: standing(receive(0), transfers=(("send", "g", 0, 0, 2),)),
    },
    "the message has another tag": {
        0: standing(receive(1, tag=7)),
        1: standing(receive(0), transfers=(("send", "g", 0, 0, 1),)),
    },
    "a barrier and a receive": {
        0: standing(collective(1), collectives=(("g", 1),)),
        1: standing(receive(0)),
    },
    "one has ended its part, and the other waits for it": {0: IN_HARNESS, 1: standing(receive(0))},
}

NO_PROOFS = {
    "nobody": {},
    "a message is on its way": {
        0: standing(receive(1)),
        1: standing(receive(0), transfers=(("send", "g", 0, 0, 1),)),
    },
    "a receive was posted": {
        0: standing(send(1)),
        1: standing(receive(0, nth=2), transfers=(("recv_", "g", 0, 0, 2),)),
    },
    "sends that need no receive": {
        0: standing(send(1, rendezvous=False)),
        1: standing(send(0, rendezvous=False)),
    },
    "one of them computes": {0: standing(receive(1)), 1: standing(None)},
    "one of them has answered": {0: standing(receive(1))},
    "a wait with a time limit": {0: standing(receive(1, timed=True)), 1: standing(receive(0))},
    "another thread": {0: standing(receive(1)), 1: standing(receive(0), alone=False)},
    "receives from any source": {0: standing(receive(1)), 1: standing(receive(0), any_source=True)},
    "nothing is recorded": {0: standing(receive(1)), 1: standing(receive(0), recorded=False)},
    "everybody is in the barrier": {
        rank: standing(collective(1 - rank), collectives=(("g", 1),)) for rank in (0, 1)
    },
    "all have ended their part": {0: IN_HARNESS, 1: IN_HARNESS},
    "one has ended its part, and the other computes": {0: IN_HARNESS, 1: standing(None)},
    "one had ended its part after it had sent": {
        0: structs.replace(IN_HARNESS, transfers=(("send", "g", 1, 0, 1),)),
        1: standing(receive(0)),
    },
    "a broadcast may end early": {
        0: standing(collective(1, name="broadcast_"), collectives=(("g", 1),)),
        1: standing(receive(0)),
    },
}


@pytest.mark.parametrize("name", PROOFS)
def test_a_deadlock_is_proved(name):
    assert proved(PROOFS[name])


@pytest.mark.parametrize("name", NO_PROOFS)
def test_what_may_still_move_is_not_accused(name):
    assert not proved(NO_PROOFS[name])


def test_a_wait_that_began_between_the_rounds_proves_nothing():
    later = {**BOTH_RECEIVE, 1: structs.replace(BOTH_RECEIVE[1], since=10.5)}
    assert not proved(BOTH_RECEIVE, later)


def test_another_operation_in_the_second_round_proves_nothing():
    wait = structs.replace(receive(0), number=4)
    assert not proved(BOTH_RECEIVE, {**BOTH_RECEIVE, 1: standing(wait)})


def test_a_wait_in_the_harness_that_has_begun_since_proves_nothing():
    first = {0: standing(None), 1: standing(receive(0))}
    assert not proved(first, {0: IN_HARNESS, 1: first[1]})


def test_somebody_who_is_missing_in_the_second_round_proves_nothing():
    assert not proved(BOTH_RECEIVE, {0: BOTH_RECEIVE[0]})


def test_rounds_that_overlap_prove_nothing():
    first = {r: structs.replace(one, began=10.0, ended=11.5) for r, one in BOTH_RECEIVE.items()}
    second = {r: structs.replace(one, began=11.0, ended=12.0) for r, one in BOTH_RECEIVE.items()}
    assert not deadlocked(first, second)
