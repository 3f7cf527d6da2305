"""Where the ranks of a world stand."""

import pytest

from pipeconform.attach.greeting import Identity
from pipeconform.attach.placement import placed, reason_against


def agent(host, rank, node=0):
    return Identity(host=host, pid=rank, address="10.0.0.1", rank=rank, node=node)


TWO_BY_TWO = [agent("b", 3, 1), agent("a", 1), agent("b", 2, 1), agent("a", 0)]


def test_neighbours_stand_on_different_hosts_whatever_the_order_of_coming():
    names = [(TWO_BY_TWO[index].host, TWO_BY_TWO[index].rank) for index in placed(TWO_BY_TWO, 4)]

    assert names == [("a", 0), ("b", 2), ("a", 1), ("b", 3)]


def test_smaller_worlds_take_the_first_of_each_host():
    assert [TWO_BY_TWO[index].rank for index in placed(TWO_BY_TWO, 2)] == [0, 2]


def test_agents_are_shared_only_when_all_are_used():
    assert sorted(placed(TWO_BY_TWO, 6)[:4]) == [0, 1, 2, 3]
    assert placed(TWO_BY_TWO, 6)[4:] == placed(TWO_BY_TWO, 2)


def test_hosts_of_different_size_are_all_used():
    agents = [agent("a", 0), agent("b", 1, 1), agent("b", 2, 1)]

    assert placed(agents, 3) == (0, 1, 2)


@pytest.mark.parametrize(
    ("size", "agents", "device_type", "share", "possible"),
    [
        (4, 1, "cpu", 1, True),
        (1, 0, "cpu", 1, False),
        (4, 4, "cuda", 1, True),
        (5, 4, "cuda", 1, False),
        (5, 4, "cuda", 2, True),
    ],
)
def test_a_processor_takes_as_many_ranks_as_come_and_a_device_its_share(
    size, agents, device_type, share, possible
):
    reason = reason_against(size, agents=agents, device_type=device_type, ranks_per_device=share)

    assert (reason is None) == possible
    assert reason is None or f"{agents} are attached" in reason


def test_the_least_used_come_first_and_neighbours_still_stand_on_different_hosts():
    load = [(0, 2), (1, 1), (0, 1), (0, 3)]  # ranks now, ranks ever: b3, a1, b2, a0
    found = [(TWO_BY_TWO[index].host, TWO_BY_TWO[index].rank) for index in placed(TWO_BY_TWO, 4, load=load)]

    assert found == [("b", 2), ("a", 0), ("b", 3), ("a", 1)]


def test_turns_go_round_all_agents():
    agents = [agent(f"host {n // 4}", n, n // 4) for n in range(32)]
    load = [[0, 0] for _ in agents]
    for _ in range(8):
        for index in placed(agents, 4, load=[tuple(one) for one in load]):
            load[index][1] += 1

    assert load == [[0, 1]] * 32
