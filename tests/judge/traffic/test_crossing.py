"""What must cross from rank to rank, and the messages if it did not."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from pipeconform.adapter import Placement
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.traffic.records import Arrived
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


def told(found: Evidence) -> list[tuple[str, str]]:
    return [(one.kind, one.message) for one in everything_crosses(found)]


def test_a_boundary_and_its_gradient_are_enough() -> None:
    assert told(crossed("S1 R1", "R0 S0")) == []


def test_where_nothing_crosses_both_directions_are_named() -> None:
    assert told(crossed("", "", arrived=())) == [
        (
            "nothing crosses",
            "rank 0 sent rank 1 0 bytes; the inputs of stage 1 have 4 bytes, which must come from there",
        ),
        (
            "nothing crosses",
            "rank 1 sent rank 0 0 bytes; the gradients of the outputs of stage 0 have 4 bytes, which must come from "
            "there",
        ),
    ]


def test_every_microbatch_counts() -> None:
    ran = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")

    ((kind, message),) = told(crossed("S1 R1 R1", "R0 S0 S0", ran=ran, m=2))
    assert kind == "less crosses than needed"
    assert message.startswith("rank 0 sent rank 1 4 bytes; the inputs of stage 1 have 8 bytes")


def test_no_gradient_is_due_in_an_evaluation() -> None:
    assert told(crossed("S1", "R0", ran=("0F0", "1F0"), trains=False)) == []


def test_a_send_that_is_not_received_and_a_message_of_another_step_do_not_count() -> None:
    unreceived = crossed("S1 R1", "S0")
    assert [message[:31] for _, message in told(unreceived)] == ["rank 0 sent rank 1 0 bytes; the"]

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
    assert finding.message == (
        "stage 1 ran on an input 0 that rank 1 did not receive: no operation of this step brought its bytes; it must "
        "come from stage 0 on rank 0"
    )


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

    found = told(crossed("", "", ran=ran, m=2, placement=Placement.MIRROR, arrived=()))

    assert found == [
        (
            "stays on one rank",
            "microbatch 0 must go from rank to rank with every stage, but rank 0 computes it for stages 0 and 1",
        )
    ]


def test_two_owners_do_not_both_compute_a_microbatch() -> None:
    ran = ("0F0 1F1 0F1 1B1 0B0", "1F0 0F1 1B0 0B1")

    found = told(crossed("", "", ran=ran, m=2, placement=Placement.MIRROR, arrived=()))

    assert found[-1] == (
        "on several ranks",
        "microbatch 1 must go from rank to rank with every stage, but rank 0 and 1 compute it for stage 0",
    )


def test_a_forward_of_no_known_microbatch_neither_crosses_nor_stays() -> None:
    assert told(crossed("S1 R1", "R0 S0", ran=("0F0 0B0", "1F0 1F99 1B0"))) == []
