"""Two replicas of a two-rank pipeline, with different data, against the mean of two plain models."""

from __future__ import annotations

import pickle

import pytest
from reference_ranks import Scenario
from replica_ranks import Replicated

from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import VerdictVector
from tests.facts import tells
from tests.selected import crossed

# m changes, gradients add up over two steps, and evaluation comes between
STEPS = (
    ("train", 7, 3),
    ("train", 4, 2),
    ("eval", 4, 2),
    ("zero", 0, 0),
    ("train", 8, 4),
)


def _run(pools: Pools, job: Replicated, task: str = "check") -> VerdictVector:
    return pools.of_size(4).run(f"replica_ranks:{task}", pickle.dumps(job), time_limit=30)


def _check(pools: Pools, *jobs: Replicated) -> None:
    for job in jobs:
        vector = _run(pools, job)
        assert vector.ok, f"{job}\n{vector.describe()}"


def _scenario(schedule: str, *, model: str = "plain", v: int = 1, steps=STEPS) -> Scenario:
    return Scenario(model=model, schedule=schedule, v=v, steps=steps)


@pytest.mark.parametrize(
    ("scheduled", "wrap"),
    crossed(
        [
            ("GPipe", 1),
            ("1F1B", 1),
            ("Interleaved1F1B", 2),
            ("LoopedBFS", 4),
            ("InterleavedZeroBubble", 2),
            ("ZB-H1", 1),
            ("ZB-H2", 1),
            ("ZBVZeroBubble", 2),
            ("V-Half", 2),
            ("V-Min", 2),
            ("DualPipeV", 2),
        ],
        ["ddp", "own", "sharded"],
    ),
)
def test_gradients_are_the_mean_and_reduced_once(pools: Pools, scheduled: tuple[str, int], wrap: str) -> None:
    (schedule, v), steps = scheduled, STEPS
    if schedule == "DualPipeV":  # at least a microbatch per stage
        steps = (("train", 9, 4), ("train", 7, 5), ("eval", 4, 2), ("zero", 0, 0), ("train", 6, 6))
    _check(pools, Replicated(scenario=_scenario(schedule, v=v, steps=steps), wrap=wrap))


@pytest.mark.parametrize(
    ("model", "wrap"),
    crossed(
        ["plain", "normed", "shared", "unused", "deaf", "detached", "frozen_part", "frozen_first"],
        ["ddp_views", "ddp_unused", "own_views", "own_unused", "sharded_inside"],
    ),
)
def test_awkward_stages_have_replicas_too(pools: Pools, model: str, wrap: str) -> None:
    _check(pools, Replicated(scenario=_scenario("ZB-H1", model=model), wrap=wrap))


@pytest.mark.parametrize(
    ("fault", "schedule", "wrap", "words"),
    [
        ("always", "GPipe", "ddp", "reductions per stage are {0: 3}, expected are {0: 1}"),
        ("always", "ZB-H1", "sharded", "3 reductions, expected are 1"),
        ("early", "1F1B", "ddp", "stage 0, gradient of"),
        ("early", "1F1B", "own", "stage 0, gradient of"),
        ("early", "1F1B", "sharded", "reductions, expected are 1"),
        ("early", "ZB-H1", "ddp", "stage 0, gradient of"),
        ("never", "1F1B", "ddp", "reductions per stage are {}, expected are {0: 1}"),
        ("never", "1F1B", "own", "reductions per stage are {}, expected are {0: 1}"),
        ("never", "GPipe", "sharded", "gradient of"),
        ("never", "ZB-H1", "sharded", "gradient of"),
        ("after_input", "ZB-H1", "ddp", "stage 0, gradient of"),
    ],
)
def test_a_reduction_at_another_time_is_caught(
    pools: Pools, fault: str, schedule: str, wrap: str, words: str
) -> None:
    scenario = _scenario(schedule, steps=(("train", 6, 3),))

    vector = _run(pools, Replicated(scenario=scenario, wrap=wrap, fault=fault))

    told = [str(verdict) for verdict in vector]
    assert any("AssertionError" in text and words in text for text in told), told


@pytest.mark.parametrize(("schedule", "wrap"), [("1F1B", "ddp"), ("ZB-H1", "own"), ("ZB-H1", "sharded")])
def test_a_replica_that_fails_ends_the_others(pools: Pools, schedule: str, wrap: str) -> None:
    steps = (("train", 6, 3), ("train", 6, 3))

    vector = _run(
        pools, Replicated(scenario=_scenario(schedule, steps=steps), wrap=wrap), "fail_then_recover"
    )

    assert vector.ok, vector.describe()
    texts = [value.decode() for value in vector.values]
    healthy, failing = texts[0::2], texts[1::2]
    assert all("ZeroDivisionError: on purpose" in text for text in failing)
    assert len(healthy) == 2
    assert all(tells(text, "PeerError", "a replica failed", "not averaged") for text in healthy)


@pytest.mark.parametrize("wrap", ["ddp_static", "ddp_static_views", "own_static"])
@pytest.mark.parametrize(("schedule", "model"), [("1F1B", "plain"), ("ZB-H1", "unused"), ("ZB-H1", "normed")])
def test_a_static_graph_is_the_same_whatever_the_number_of_microbatches(
    pools: Pools, schedule: str, model: str, wrap: str
) -> None:
    _check(pools, Replicated(scenario=_scenario(schedule, model=model), wrap=wrap))


@pytest.mark.parametrize("wrap", ["ddp", "own", "sharded"])
def test_gradients_are_the_mean_when_stages_are_driven_by_hand(pools: Pools, wrap: str) -> None:
    _check(pools, Replicated(scenario=_scenario("ZBVZeroBubble", v=2), wrap=wrap, by_hand=True))
