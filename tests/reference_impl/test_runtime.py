"""The whole pipeline on real processes, against a plain model."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pipeconform.reference_impl.runtime import receives_after
from pipeconform.reference_impl.tables import training_table
from reference_models import MODELS
from reference_ranks import Scenario

from pipeconform.ranks.pools import Pools
from pipeconform.schedule import Action, Table, generate, lower, write_table
from tests.selected import crossed

TRAIN = ("train", 6, 3)
SPLITTING = ("InterleavedZeroBubble", "ZB-H1", "ZB-H2", "ZBVZeroBubble", "DualPipeV", "V-Half", "V-Min")


def _check(pools: Pools, *scenarios: Scenario, world: int | None = None) -> None:
    for scenario in scenarios:
        pool = pools.of_size(world or max(scenario.members) + 1)
        vector = pool.run("reference_ranks:check", pickle.dumps(scenario), time_limit=30)
        assert vector.ok, f"{scenario}\n{vector.describe()}\n{list(vector)}"


@pytest.mark.parametrize(("model", "schedule"), crossed(tuple(MODELS), ["1F1B", "ZB-H1"]))
def test_every_model_trains_as_unpipelined(pools: Pools, model: str, schedule: str) -> None:
    steps = (TRAIN, ("eval", 4, 2), ("train", 7, 3), ("zero", 0, 0), TRAIN)
    _check(
        pools,
        *(
            Scenario(model=model, schedule=schedule, members=ranks, steps=steps)
            for ranks in ((0, 1), (0, 1, 2))
        ),
    )


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    crossed(
        [
            ("GPipe", 1, 4),
            ("1F1B", 1, 4),
            ("Interleaved1F1B", 2, 4),
            ("Interleaved1F1B-Megatron", 2, 6),
            ("LoopedBFS", 2, 3),
            ("InterleavedZeroBubble", 2, 4),
            ("ZB-H1", 1, 4),
            ("ZB-H2", 1, 5),
            ("ZBVZeroBubble", 2, 4),
            ("V-Half", 2, 5),
            ("V-Min", 2, 5),
            ("DualPipeV", 2, 6),
        ],
        [(0,), (0, 1), (0, 1, 2)],
    ),
)
def test_every_schedule_trains_and_evaluates(
    pools: Pools, sizes: tuple[str, int, int], ranks: tuple[int, ...]
) -> None:
    schedule, v, m = sizes
    steps = (("train", 7, m), ("train", 7, m), ("eval", 3, 2))
    _check(
        pools,
        *(
            Scenario(model=name, schedule=schedule, members=ranks, v=v, steps=steps)
            for name in ("several", "hooked")
        ),
    )


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZB-H1", "ZB-H2"])
def test_fewer_microbatches_than_ranks(pools: Pools, schedule: str) -> None:
    steps = (("train", 3, 1), ("train", 3, 2))
    _check(pools, Scenario(schedule=schedule, members=(0, 1, 2), steps=steps))


def test_forward_only_evaluates(pools: Pools) -> None:
    _check(
        pools, Scenario(schedule="ForwardOnly", model="normed", v=2, steps=(("eval", 5, 3), ("eval", 2, 1)))
    )


@pytest.mark.parametrize("members", [(1, 3), (3, 1), (2,)])
def test_a_group_that_is_not_the_world(pools: Pools, members: tuple[int, ...]) -> None:
    _check(
        pools, Scenario(members=members, v=2, schedule="Interleaved1F1B", steps=(("train", 4, 2),)), world=4
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("model", ["plain", "frozen_first", "gain", "detached"])
def test_inputs_that_require_grad_receive_it(pools: Pools, reduction: str, model: str) -> None:
    steps = (("train", 7, 3), ("train", 4, 4))
    scenarios = [
        Scenario(model=model, schedule=schedule, reduction=reduction, steps=steps, input_requires_grad=True)
        for schedule in ("1F1B", "ZB-H1")
    ]
    _check(pools, *scenarios)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("microbatch", [0, 3])
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZB-H2"])
def test_a_failure_ends_every_rank_and_leaves_the_group_usable(
    pools: Pools, stage: int, microbatch: int, schedule: str
) -> None:
    scenario = Scenario(
        schedule=schedule, members=(0, 1, 2), steps=(("train", 8, 4),), fail_at=(stage, microbatch)
    )
    vector = pools.of_size(3).run("reference_ranks:fail_then_recover", pickle.dumps(scenario), time_limit=30)
    assert vector.ok, vector.describe()
    where = f"rank {stage} (pipeline rank {stage}), stage {stage}, microbatch {microbatch}, forward"
    words = f"{where}: ZeroDivisionError: on purpose"
    texts = [value.decode() for value in vector.values]
    assert texts[stage] == f"StageError from ZeroDivisionError: {words}"
    # whoever still had to receive something was told; nobody hung
    told = [text for rank, text in enumerate(texts) if rank != stage]
    assert all(text in {f"PeerError from NoneType: {words}", "nothing was raised"} for text in told)
    assert stage == 2 or texts[2].startswith("PeerError")


@pytest.mark.parametrize("schedule", ["GPipe", "DualPipeV"])
def test_a_batch_too_small_is_refused_on_every_rank(pools: Pools, schedule: str) -> None:
    v = 2 if schedule == "DualPipeV" else 1
    scenario = Scenario(schedule=schedule, v=v, steps=(("train", 8, 4), ("train", 4, 4), ("train", 8, 1)))
    if schedule == "GPipe":
        scenario = Scenario(steps=(("train", 3, 3), ("train", 2, 3)))
    vector = pools.of_size(2).run("reference_ranks:refuse", pickle.dumps(scenario), time_limit=30)
    assert vector.ok, vector.describe()
    words = "cannot be split into 3 microbatches" if schedule == "GPipe" else "m=1 microbatches"
    assert all(words in value.decode() for value in vector.values)


def test_a_receive_is_due_after_the_last_message_between_the_two_ranks() -> None:
    words = "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_B0 1B0 1SEND_B0 1RECV_B1"
    parts = [Action.parse(word) for word in words.split()]

    assert receives_after(parts, (0, 1, 2)) == {
        -1: [(0, None)],  # the first input
        0: [(0, None)],
        5: [(2, (2, 0))],  # not ahead of 1SEND_F1: rank 2 may serve what is between the two in order
        6: [(2, (2, 1))],
    }


@pytest.mark.parametrize("file", ["compute-only.csv", "with-communication.csv", "everything.json"])
def test_a_table_in_a_file_is_carried_out(pools: Pools, tmp_path: Path, file: str) -> None:
    """One that no family has: interleaved zero bubble, one rank's last weight parts in another order."""
    table = generate("interleaved_zero_bubble", num_ranks=2, stages_per_rank=2, num_microbatches=4)
    ranks = [list(actions) for actions in table]
    ranks[1][-2:] = ranks[1][:-3:-1]
    other = Table.build(ranks, placement=table.placement, num_microbatches=4)
    assert other != table
    write_table(lower(other) if file.startswith("with") else other, tmp_path / file)

    _check(pools, Scenario(schedule=str(tmp_path / file), v=2, steps=(("train", 9, 4), ("eval", 4, 2))))


def test_a_table_in_a_file_that_is_wrong_or_of_another_size_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    sizes = {"num_ranks": 2, "stages_per_rank": 1}
    write_table(generate("one_f_one_b", num_ranks=2, num_microbatches=3), file)
    with pytest.raises(ValueError, match=r"is for p=2 ranks and m=3 microbatches, not for p=2, m=4"):
        training_table(str(file), num_microbatches=4, **sizes)

    file.write_text("0F0,0B0\n1F0,1B0,1B0\n")
    with pytest.raises(ValueError, match=r"cannot be carried out: \[SCH-1 multiset\]"):
        training_table(str(file), num_microbatches=1, **sizes)
