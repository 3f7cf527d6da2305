"""The contents of real engines' messages are identified, and equally at both ends."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from msgspec import structs

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.case.blocks import Linear, Norm
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.traffic.cargo import Carried, carried_by, shared
from pipeconform.judge.traffic.messages import exchange
from pipeconform.observe.observation import Reference, Structure
from pipeconform.observe.traffic.records import Cargo
from pipeconform.ranks.pools import Pools
from tests.facts import tells
from tests.judge.executions import evidence, value
from tests.judge.grid import evidence_of
from tests.judge.recorded import traffic

TORCH = "pipeconform.adapters.torch_pipelining:TorchPipelining"
REFERENCE = "pipeconform.reference_impl.adapter:ReferenceAdapter"
RUNS = [("1F1B", 2, 1, 3), ("Interleaved1F1B", 3, 2, 3), ("ZBVZeroBubble", 2, 2, 4), ("GPipe", 4, 1, 2)]


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    preload = ("torch", "torch.distributed", "pipeconform.execute.worker", "pipeconform.oracle.full_model")
    with Pools(preload=preload) as made:
        yield made


@pytest.mark.parametrize("engine", [TORCH, REFERENCE])
def test_every_boundary_s_messages_are_recognised_in_every_step(pools: Pools, engine: str) -> None:
    executor = Executor(implementation=engine, description=describe(pools, engine), pools=pools)
    for name, p, v, m in RUNS:
        train = Train(batch_size=2 * m, num_microbatches=m)
        case = Case(
            model=Model(width=4, stages=(Stage(blocks=(Linear(), Norm())),) * (p * v)),
            schedule=name,
            stages_per_rank=v,
            world=World(size=p, pipeline_ranks=tuple(range(p))),
            program=(train, Zero(), train),
        )
        execution = executor.execute(case, observe=("traffic",))
        assert execution.outcome() is None
        evidence = executor.evidence(execution)
        own = carried_by(evidence)
        found = exchange({one.rank: one.traffic for one in execution.shown if one.traffic}, own)

        crossings = [s for s in range(p * v - 1) if evidence.placement[s] != evidence.placement[s + 1]]
        due = {(what, s + 1, k) for s in crossings for k in range(m) for what in ("input", "input gradient")}
        seen: dict[int, Counter[tuple[str, int, int | None]]] = {0: Counter(), 2: Counter()}
        for message in found.messages:
            sent, received = own.get(message.send), own.get(message.receive)
            if sent is not None and received is not None:
                assert (sent.microbatch, sent.what) == (received.microbatch, _other_end(received.what))
                assert abs(sent.stage - received.stage) == 1
            told = received or sent
            if told is not None:
                back = "gradient" in told.what
                stage = told.stage + (told.what.startswith("output"))
                step = found.operation(message.send).step
                seen[step][("input gradient" if back else "input", stage, told.microbatch)] += 1
        assert seen[2] == Counter(dict.fromkeys(due, 1)), name
        # the reference's first message between two ranks comes in two pieces, which are put together by a copy
        assert set(seen[0]) <= due
        assert len(due - set(seen[0])) <= (2 * len(crossings) if engine == REFERENCE else 0)


@pytest.mark.parametrize("name", ["communicating", "communicating among bystanders"])
def test_the_inputs_of_a_forward_tell_the_microbatch_of_what_it_carries(name: str) -> None:
    """Ranks send three microbatches forwards and three gradients backwards, in every training step."""
    made = evidence_of(name)
    own = carried_by(made)
    found: dict[tuple[int, int, str, int], list[int | None]] = {}
    for (rank, number), cargo in sorted(own.items()):
        traffic = made.shown[rank].traffic
        assert traffic is not None
        step = traffic.operations[number].step
        found.setdefault((rank, step, cargo.what, cargo.stage), []).append(cargo.microbatch)

    ranks = made.case.world.pipeline_ranks
    steps = [expected.step for expected in made.runs(Train)]
    assert found == {
        (rank, step, what, position): [0, 1, 2]
        for position, rank in enumerate(ranks)
        for step in steps
        for what in ("input", "output", "input gradient", "output gradient")
        if (position > 0 if "input" in what else position + 1 < len(ranks))
    }


def test_a_forward_of_no_known_microbatch_and_one_that_was_not_recorded_tell_none() -> None:
    made = evidence_of("communicating")
    steps = made.shown[1].steps
    strange = structs.replace(steps[0].forwards[1], inputs=(Structure.of(torch.full((2, 3), 99.0)),))
    first = structs.replace(steps[0], forwards=(steps[0].forwards[0], strange))
    shown = (made.shown[0], structs.replace(made.shown[1], steps=(first, *steps[1:])), *made.shown[2:])
    own = carried_by(dataclasses.replace(made, shown=shown))
    traffic = made.shown[1].traffic
    assert traffic is not None
    known = [
        own[1, number].microbatch
        for number, cargo in traffic.cargo.items()
        if cargo.what == "input" and traffic.operations[number].step == 0
    ]

    assert known == [0, None, None]


def _carrying(made: Evidence, cargo: Cargo, *, step: int = 0) -> Carried:
    """What one send of rank 0 in a step is said to carry."""
    one = traffic("S1", ranks=2, cargo={0: cargo})
    operations = tuple(structs.replace(operation, step=step) for operation in one.operations)
    first = structs.replace(made.shown[0], traffic=structs.replace(one, operations=operations))
    (found,) = carried_by(dataclasses.replace(made, shown=(first, *made.shown[1:]))).values()
    return found


def test_the_place_of_a_forward_among_all_of_its_step_tells_its_microbatch() -> None:
    """The second forward is that of microbatch 2, the third that of none; there is no fourth, and no other step."""
    made = evidence("1F0 1F2 1F99", "", m=3)
    found = [_carrying(made, Cargo("output", 1, number)).microbatch for number in range(4)]

    assert found == [0, 2, None, None]
    for step in (-1, 1):
        assert _carrying(made, Cargo("output", 1, 1), step=step) == Carried(what="output", stage=1)


def test_a_forward_of_which_two_microbatches_are_possible_tells_none() -> None:
    made = evidence("1F0", "", m=2)
    alike = structs.replace(made.expected.steps[0], inputs=((value(0, 0),) * 2, (value(1, 0),) * 2))
    made = dataclasses.replace(made, expected=Reference(steps=(alike,)))

    assert _carrying(made, Cargo("output", 1, 0)).microbatch is None


def test_a_rank_whose_traffic_was_not_recorded_carries_nothing() -> None:
    assert carried_by(evidence("0F0", "1F0", m=1)) == {}


def test_what_one_end_cannot_tell_the_other_tells() -> None:
    cargo = Carried(what="input", stage=1, microbatch=2)
    other = Carried(what="output", stage=0, microbatch=1)
    pairs = [((0, 0), (1, 0)), ((0, 1), (1, 1)), ((0, 2), (1, 2)), ((0, 3), (1, 3))]

    found = shared({(1, 0): cargo, (0, 1): other, (1, 1): cargo, (0, 3): other}, pairs)
    assert found == {
        (0, 0): cargo,
        (1, 0): cargo,
        (0, 1): other,
        (1, 1): cargo,
        (0, 3): other,
        (1, 3): other,
    }


def test_it_is_said_in_words() -> None:
    gradient, value = Carried(what="output gradient", stage=1, microbatch=3), Carried(what="input", stage=2)
    assert tells(str(gradient), "gradient", "output of stage 1", "microbatch 3")
    assert tells(str(value), "input of stage 2")
    assert not any(word in str(value) for word in ("gradient", "microbatch", "None"))


def _other_end(what: str) -> str:
    words = {"input": "output", "output": "input"}
    first, *rest = what.split()
    return " ".join([words[first], *rest])
