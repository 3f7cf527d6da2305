"""What must cross from rank to rank, and the messages if it did not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from msgspec import structs
from pipeconform.reference_impl.faults import FAULTS

from pipeconform.adapter import Placement
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import Reference, Structure
from pipeconform.observe.traffic.records import Arrived
from tests.facts import tells
from tests.judge.executions import evidence
from tests.judge.recorded import traffic

everything_crosses = JUDGEMENTS["COM-7"].judge

TRAINED = ("0F0 0B0", "1F0 1B0")


def crossed(
    *texts: str,
    ran: tuple[str, ...] = TRAINED,
    arrived: tuple[Arrived, ...] | None = None,
    m: int = 1,
    placement: Placement = Placement.LOOP,
    trains: bool = True,
) -> Evidence:
    """One step in which ranks communicated as `texts` say; what came to rank 1 is `arrived`, if not everything."""
    made = evidence(*ran, m=m, placement=placement, trains=trains)
    forwards = len(made.shown[1].steps[0].forwards)
    came = tuple(Arrived(0, 1, n, (True,)) for n in range(forwards)) if arrived is None else arrived
    shown = tuple(
        structs.replace(one, traffic=traffic(text, ranks=len(texts), arrived=came if one.rank == 1 else ()))
        for one, text in zip(made.shown, texts, strict=True)
    )
    return replace(made, shown=shown)


def judged(found: Evidence) -> list[Finding]:
    return list(everything_crosses(found))


def told(found: Evidence) -> list[tuple[str, str]]:
    return [(one.kind, one.message) for one in judged(found)]


def test_a_boundary_and_its_gradient_are_enough() -> None:
    assert told(crossed("S1 R1", "R0 S0")) == []


def test_where_nothing_crosses_both_directions_are_named() -> None:
    down, up = judged(crossed("", "", arrived=()))

    assert [(one.kind, one.rank) for one in (down, up)] == [("nothing crosses", 1), ("nothing crosses", 0)]
    assert tells(down.message, "rank 0", "rank 1", "0 bytes", "inputs of stage 1", "4 bytes")
    assert tells(up.message, "rank 1", "rank 0", "0 bytes", "gradients", "outputs of stage 0", "4 bytes")


def test_every_microbatch_counts() -> None:
    ran = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")

    ((kind, message),) = told(crossed("S1 R1 R1", "R0 S0 S0", ran=ran, m=2))
    assert kind == "less crosses than needed"
    assert tells(message, "rank 0", "rank 1", "4 bytes", "inputs of stage 1", "8 bytes")


def test_no_gradient_is_due_in_an_evaluation() -> None:
    assert told(crossed("S1", "R0", ran=("0F0", "1F0"), trains=False)) == []


def test_a_send_that_is_not_received_and_a_message_of_another_step_do_not_count() -> None:
    ((kind, message),) = told(crossed("S1 R1", "S0"))
    assert kind == "nothing crosses"
    assert tells(message, "rank 0", "rank 1", "0 bytes", "inputs of stage 1")

    early = crossed("S1 R1", "R0 S0")
    operations = tuple(structs.replace(one, step=-1) for one in early.shown[0].traffic.operations)
    shown = structs.replace(
        early.shown[0], traffic=structs.replace(early.shown[0].traffic, operations=operations)
    )
    assert len(told(replace(early, shown=(shown, early.shown[1])))) == 1


def test_collectives_of_both_ranks_may_bring_it() -> None:
    assert told(crossed("C", "C")) == []
    assert len(told(crossed("C", "", arrived=()))) == 2


def test_a_stage_that_did_not_work_on_what_came_is_named() -> None:
    (finding,) = everything_crosses(crossed("S1 R1", "R0 S0", arrived=(Arrived(0, 1, 0, (False,)),)))

    assert (finding.kind, finding.rank, finding.stage, finding.microbatch) == (
        "input that did not come",
        1,
        1,
        0,
    )
    assert tells(finding.message, "stage 1", "input 0", "rank 1", "not seen to receive", "stage 0", "rank 0")


def test_a_dry_run_on_the_same_values_excuses_nothing_and_accuses_nobody() -> None:
    found = crossed(
        "S1 R1",
        "R0 S0",
        ran=("0F0 0B0", "1F0 1F0 1B0"),
        arrived=(
            Arrived(0, 1, 0, (False,)),
            Arrived(0, 1, 1, (True,)),
        ),
    )

    assert told(found) == []


def test_of_a_stage_with_two_owners_the_one_that_ran_counts() -> None:
    """Each direction of a two-direction pipeline crosses once: microbatch 0 goes down, microbatch 1 goes up."""
    ran = ("0F0 0B0 1F1 1B1", "1F0 1B0 0F1 0B1")
    arrived = (Arrived(0, 1, 0, (True,)),)

    assert (
        told(crossed("S1 R1 R1 S1", "R0 S0 S0 R0", ran=ran, m=2, placement=Placement.MIRROR, arrived=arrived))
        == []
    )
    short = crossed("S1 R1", "R0 S0", ran=ran, m=2, placement=Placement.MIRROR, arrived=arrived)
    assert [kind for kind, _ in told(short)] == ["less crosses than needed"] * 2


def test_nothing_crosses_between_stages_of_one_rank() -> None:
    found = evidence("0F0 1F0 1B0 0B0", m=1, v=2)
    shown = structs.replace(found.shown[0], traffic=traffic("", ranks=1))

    assert told(replace(found, shown=(shown,))) == []


def test_a_microbatch_does_not_stay_on_a_rank_that_has_every_stage() -> None:
    """On two ranks a two-direction pipeline has everything everywhere: it could divide the batch and send nothing."""
    ran = ("0F0 1F0 1B0 0B0", "0F1 1F1 1B1 0B1")

    (found,) = judged(crossed("", "", ran=ran, m=2, placement=Placement.MIRROR, arrived=()))

    assert (found.kind, found.rank, found.stage, found.microbatch) == ("stays on one rank", 0, 1, 0)
    assert tells(found.message, "microbatch 0", "rank 0", "stages 0 and 1")


def test_two_owners_do_not_both_compute_a_microbatch() -> None:
    ran = ("0F0 1F1 0F1 1B1 0B0", "1F0 0F1 1B0 0B1")

    *_, found = judged(crossed("", "", ran=ran, m=2, placement=Placement.MIRROR, arrived=()))

    assert (found.kind, found.rank, found.stage, found.microbatch) == ("on several ranks", 0, 0, 1)
    assert tells(found.message, "microbatch 1", "0 and 1", "stage 0")


def test_a_forward_of_no_known_microbatch_neither_crosses_nor_stays() -> None:
    assert told(crossed("S1 R1", "R0 S0", ran=("0F0 0B0", "1F0 1F99 1B0"))) == []


CHAIN = ("0F0 0B0", "1F0 1B0", "2F0 2B0")


@pytest.mark.parametrize(
    ("texts", "pairs"),
    [
        (("S1 R1", "R0 S0 S2 R2", "R1 S1"), []),
        (("", "S2 R2", "R1 S1"), [(0, 1), (1, 0)]),
        (("S1 R1", "R0 S0", ""), [(1, 2), (2, 1)]),
        (("S1", "R0 S2", "R1"), [(1, 0), (2, 1)]),
    ],
    ids=["everything", "not the first boundary", "not the last", "no gradients"],
)
def test_every_boundary_must_be_crossed_both_ways(
    texts: tuple[str, ...], pairs: list[tuple[int, int]]
) -> None:
    found = list(everything_crosses(crossed(*texts, ran=CHAIN)))

    assert [one.kind for one in found] == ["nothing crosses"] * len(pairs)
    assert sorted((int(one.message.split()[1]), one.rank) for one in found) == pairs


def test_a_rank_that_did_not_run_its_stage_is_due_to_be_sent_to_all_the_same() -> None:
    kinds = [kind for kind, _ in told(crossed("", "", ran=("0F0 0B0", ""), arrived=()))]

    assert kinds == ["nothing crosses"] * 2


def test_of_a_stage_with_two_owners_that_neither_ran_nothing_is_due() -> None:
    for ran in (("0F0 0B0", ""), ("", "1F0 1B0")):
        assert told(crossed("", "", ran=ran, placement=Placement.MIRROR, arrived=())) == []


def test_every_tensor_of_every_input_counts_and_those_that_are_differentiable_count_twice() -> None:
    """Two inputs, of which the second is a pair: 8 bytes of integers, then 4 and 2 bytes of floating-point numbers."""
    made = crossed("S1 R1", "R0 S0")
    pair = (torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    inputs = (Structure.of(torch.ones(1, dtype=torch.int64)), Structure.of(pair))
    step = made.expected.steps[0]
    step = structs.replace(step, inputs=(step.inputs[0], (inputs,)))
    found = told(replace(made, expected=Reference(steps=(step,))))

    assert [message.split("; ")[1].split(",")[0] for _, message in found] == [
        "the inputs of stage 1 have 14 bytes",
        "the gradients of the outputs of stage 0 have 6 bytes",
    ]


def of_operations(made: Evidence, rank: int, **fields: object) -> Evidence:
    """The operations of one rank changed."""
    recorded = made.shown[rank].traffic
    assert recorded is not None
    changed = tuple(structs.replace(one, **fields) for one in recorded.operations)
    shown = list(made.shown)
    shown[rank] = structs.replace(shown[rank], traffic=structs.replace(recorded, operations=changed))
    return replace(made, shown=tuple(shown))


@pytest.mark.parametrize("name", ["broadcast_", "scatter_"])
def test_a_collective_with_a_root_brings_what_the_root_has_and_nothing_else(name: str) -> None:
    def rooted(root: int) -> Evidence:
        made = crossed("C", "C")
        for rank in (0, 1):
            made = of_operations(made, rank, name=name, process=root)
        return made

    assert [message[:27] for _, message in told(rooted(0))] == ["rank 1 sent rank 0 0 bytes;"]
    assert [message[:27] for _, message in told(rooted(1))] == ["rank 0 sent rank 1 0 bytes;"]


def test_every_collective_counts_for_every_member_of_which_it_is_known_in_its_own_step() -> None:
    ran = ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")

    assert told(crossed("C C", "C C", ran=ran, m=2)) == []
    assert [kind for kind, _ in told(crossed("C", "C", ran=ran, m=2))] == ["less crosses than needed"] * 2
    for rank in (0, 1):
        # what a rank received before the step is nothing that it received in the step
        found = told(of_operations(crossed("C", "C"), rank, step=-1))
        assert [message[:27] for _, message in found] == [f"rank {1 - rank} sent rank {rank} 0 bytes;"]


def test_of_a_message_as_much_crosses_as_the_smaller_of_its_ends_has() -> None:
    for rank in (0, 1):
        found = told(of_operations(crossed("S1", "R0", trains=False, ran=("0F0", "1F0")), rank, num_bytes=3))
        assert [message[:27] for _, message in found] == ["rank 0 sent rank 1 3 bytes;"]


@pytest.mark.parametrize(
    ("came", "told_of"),
    [
        (((True,), (True,)), None),
        (((False,), (True,)), (0, 0)),
        (((True,), (False,)), (1, 0)),
        (((False,), (False,)), (0, 0)),
        (((True, True), (True, False)), (1, 1)),
        (((False, True), (True, True)), (0, 0)),
    ],
)
def test_the_first_microbatch_and_input_that_did_not_come_are_told_once_for_a_rank(
    came: tuple[tuple[bool, ...], ...], told_of: tuple[int, int] | None
) -> None:
    ran = ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")
    arrived = tuple(Arrived(0, 1, number, tensors) for number, tensors in enumerate(came))
    found = list(everything_crosses(crossed("S1 S1 R1 R1", "R0 R0 S0 S0", ran=ran, m=2, arrived=arrived)))

    if told_of is None:
        assert found == []
        return
    (one,) = found
    assert (one.kind, one.microbatch) == ("input that did not come", told_of[0])
    words = FAULTS["data-crosses"].tells.replace("input 0", f"input {told_of[1]}")
    assert re.search(words, one.message)  # of the label, which a self-test looks for


def test_what_came_in_another_step_and_what_is_not_known_of_are_held_against_nobody() -> None:
    for arrived in ((), (Arrived(1, 1, 0, (False,)),), (Arrived(0, 1, 5, (False,)),)):
        assert told(crossed("S1 R1", "R0 S0", arrived=arrived)) == []


def test_the_first_stage_and_stages_beside_each_other_on_a_rank_receive_nothing() -> None:
    """A V: stages 1 and 2 are both on rank 1; stage 0 gets its inputs from the user."""
    made = evidence("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0", m=1, v=2, placement=Placement.V)
    stages = {0: (0, 3), 1: (1, 2)}
    for missing, is_told in ((0, False), (1, True), (2, False), (3, True)):
        shown = tuple(
            structs.replace(
                one,
                traffic=traffic(
                    ("S1 R1 R1 S1", "R0 S0 S0 R0")[one.rank],
                    ranks=2,
                    arrived=tuple(
                        Arrived(0, s, number, (s != missing,)) for number, s in enumerate(stages[one.rank])
                    ),
                ),
            )
            for one in made.shown
        )
        found = list(everything_crosses(replace(made, shown=shown)))

        assert [(one.kind, one.stage) for one in found] == [("input that did not come", missing)] * is_told


def test_a_bystander_is_no_part_of_it_and_ranks_are_those_of_the_world() -> None:
    """The same pipeline on ranks 1 and 2 of a world of three."""
    made = crossed("", "", arrived=())
    world = structs.replace(made.case.world, size=3, pipeline_ranks=(1, 2))
    outside = structs.replace(made.shown[0], rank=0, pipeline_rank=None)
    shown = (outside, *(structs.replace(one, rank=one.rank + 1) for one in made.shown))
    moved = replace(made, case=structs.replace(made.case, world=world), shown=shown)

    assert [message[:27] for _, message in told(moved)] == [
        "rank 1 sent rank 2 0 bytes;",
        "rank 2 sent rank 1 0 bytes;",
    ]


def test_the_stage_and_microbatch_that_stayed_are_named_the_first_of_them_only() -> None:
    """Microbatch 1 goes from rank 1 to rank 0, as it may; microbatch 0 stays on rank 1."""
    ran = ("1F1 1B1", "0F0 1F0 1B0 0B0 0F1 0B1")
    found = list(everything_crosses(crossed("", "", ran=ran, m=2, placement=Placement.MIRROR, arrived=())))

    (one,) = [one for one in found if one.kind == "stays on one rank"]
    assert (one.rank, one.stage, one.microbatch) == (1, 1, 0)
    assert "rank 1 computes it for stages 0 and 1" in one.message


def test_a_later_microbatch_that_stays_is_found_too() -> None:
    ran = ("0F0 0B0", "1F0 1B0 0F1 1F1 1B1 0B1")
    found = list(everything_crosses(crossed("", "", ran=ran, m=2, placement=Placement.MIRROR, arrived=())))

    (one,) = [one for one in found if one.kind == "stays on one rank"]
    assert (one.rank, one.stage, one.microbatch) == (1, 1, 1)
