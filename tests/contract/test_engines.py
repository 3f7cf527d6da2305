"""Engines of every kind go through the real machinery: right ones pass, and a wrong use of each is found.

An engine that is not installed, or not in the release that these verdicts are about, is skipped; `make engines`
sets up an environment that has them all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.spec import profile, requirement
from tests.installed import installed_release

ENGINES = Path(__file__).parent / "engines"
WRONG = ENGINES / "wrong.py"
RELEASES = {
    "deepspeed": "0.19.8",
    "megatron-core": "0.16.1",
    "colossalai": "0.5.0",
    "dualpipe": "1.0.0",
    "nanotron": "0.4",
    "nemo-automodel": "0.7.0",
    "ai2-olmo-core": "3.0.0",
    "InternEvo": "0.5.3",
    "hetu-galvatron": "2.4.0",
    "torchtitan": "0.3.0",
    "picotron": "0.1.0",
    "torchgpipe": "0.0.7",
    "accelerate": "1.15.0",
    "zero-bubble": "0.9.0",
    "apex": "0.1",
}

ASKED = ("FWD-1", "TRN-1", "TRN-2", "TRN-3", "TRN-14", "SCH-1", "SCH-7", "LIF-1", "LIF-6")
CASES = [
    ("reference-single", None, "GPipe", (1, 1)),
    ("torchgpipe", "torchgpipe", "GPipe", (1, 1)),
    ("deepspeed", "deepspeed", "1F1B", (2, 3)),
    ("deepspeed", "deepspeed", "DualPipeV", (1, 3)),
    ("deepspeed-zero1", "deepspeed", "1F1B", (2, 3)),
    ("deepspeed-zero1", "deepspeed", "DualPipeV", (2, 2)),
    ("megatron", "megatron-core", "1F1B", (2, 3)),
    ("megatron", "megatron-core", "Interleaved1F1B", (2, 2)),
    ("megatron-lm", "megatron-core", "1F1B", (2, 3)),
    ("megatron-batched", "megatron-core", "1F1B", (2, 3)),
    ("megatron-batched", "megatron-core", "Interleaved1F1B", (3, 3)),
    ("colossalai", "colossalai", "1F1B", (2, 3)),
    ("dualpipe", "dualpipe", "DualPipe", (2, 2)),
    ("dualpipe-default", "dualpipe", "DualPipe", (2, 2)),
    ("nanotron", "nanotron", "GPipe", (2, 3)),
    ("nanotron", "nanotron", "1F1B", (2, 3)),
    ("automodel", "nemo-automodel", "1F1B", (2, 3)),
    ("automodel", "nemo-automodel", "ZBVZeroBubble", (2, 2)),
    ("olmo-core", "ai2-olmo-core", "Interleaved1F1B", (2, 3)),
    ("olmo-core", "ai2-olmo-core", "1F1BV", (2, 3)),
    ("internevo", "InternEvo", "1F1B", (2, 3)),
    ("internevo", "InternEvo", "Interleaved1F1B", (2, 3)),
    ("internevo", "InternEvo", "ZB-H1", (2, 3)),
    ("internevo", "InternEvo", "ZBVZeroBubble", (2, 3)),
    ("galvatron", "hetu-galvatron", "GPipe", (2, 3)),
    ("galvatron", "hetu-galvatron", "1F1B", (2, 3)),
    ("picotron-undivided", "picotron", "GPipe", (2, 3)),
    ("picotron-undivided", "picotron", "1F1B", (2, 3)),
    ("torchtitan", "torchtitan", "1F1B", (2, 3)),
    ("torchtitan", "torchtitan", "ZBVZeroBubble", (2, 2)),
    ("torchtitan-graph-pp", "torchtitan", "Interleaved1F1B", (2, 3)),
    ("torchtitan-graph-pp", "torchtitan", "DualPipeV", (2, 2)),
    ("zero-bubble", "zero-bubble", "1F1B", (2, 3)),
    ("zero-bubble", "zero-bubble", "ZB1P", (2, 3)),
    ("zero-bubble", "zero-bubble", "ZBV", (2, 2)),
    ("apex", "apex", "1F1B", (1, 3)),
    ("apex", "apex", "Interleaved1F1B", (3, 3)),
    ("accelerate-unpadded", "accelerate", "GPipe", (2, 3)),
    (f"{ENGINES / 'exporting.py'}:Exporting", None, "GPipe", (1, 1)),
    (f"{ENGINES / 'tracing.py'}:Tracing", None, "GPipe", (1, 1)),
    (f"{ENGINES / 'two_direction.py'}:TwoDirection", None, "DualPipe", (2, 2)),
    (f"{ENGINES / 'two_direction.py'}:DualPipe", None, "DualPipe", (2, 2)),
]
NOT_CLAIMED = {
    "two_direction": ("LIF-1",),
    **dict.fromkeys(("tracing", "torchtitan-graph-pp"), ("SCH-1", "SCH-7")),
    **dict.fromkeys(("accelerate-unpadded", "exporting"), ("TRN-1", "TRN-2", "TRN-3", "TRN-14", "LIF-1")),
}
"""What an engine does not claim of what is asked: it evaluates nothing, or nothing else; graphs compute."""
KNOWN = {
    **{(name, "DualPipe"): {"LIF-6": "error"} for name in ("dualpipe", "dualpipe-default")},
    **{("nanotron", name): {"LIF-1": "blocked"} for name in ("GPipe", "1F1B")},
    ("automodel", "1F1B"): {"LIF-1": "failed"},
    ("automodel", "ZBVZeroBubble"): {"LIF-1": "blocked"},
    ("internevo", "ZBVZeroBubble"): {"LIF-1": "blocked"},
    ("torchtitan", "1F1B"): {"LIF-6": "crashed"},
    ("torchtitan", "ZBVZeroBubble"): {"LIF-1": "blocked", "LIF-6": "error"},
    **{
        ("torchtitan-graph-pp", name): {"LIF-1": "error", "LIF-6": "error"}
        for name in ("Interleaved1F1B", "DualPipeV")
    },
}
"""What an engine is known to break of what is asked: finding E23, in a model with a frozen stage; E29, by SCH-9;
torch's 4, and 5, by SCH-9; an evaluation that raises, by SCH-9; E75, where a stage is frozen;
torch's 5, by SCH-9, and 107; E115 and E119."""
MISTAKES = [
    (f"{ENGINES / 'two_direction.py'}:ForwardsFirst", None, "DualPipe", "SCH-2"),
    (f"{WRONG}:AveragesTwice", None, "GPipe", "TRN-3"),
    (f"{WRONG}:AveragesTwiceOverTorchGPipe", "torchgpipe", "GPipe", "TRN-3"),
    (f"{WRONG}:ReadsClearedGradients", "deepspeed", "1F1B", "TRN-1"),
    (f"{WRONG}:ReadsClearedGradients", "deepspeed", "DualPipeV", "TRN-1"),
    (f"{WRONG}:KeepsReplicasApart", "deepspeed", "1F1B", "DPC-1"),
    (f"{WRONG}:KeepsReplicasApart", "deepspeed", "1F1B", "DPC-2"),
    (f"{WRONG}:NeverFinishesReplicas", "megatron-core", "1F1B", "DPC-1"),
    (f"{WRONG}:FinishesReplicasTwice", "megatron-core", "1F1B", "DPC-2"),
    (f"{WRONG}:ReportsDividedLosses", "megatron-core", "1F1B", "TRN-2"),
    (f"{WRONG}:ClipsByOwnNorm", "megatron-core", "1F1B", "TRN-21"),
    (f"{WRONG}:LoadsOnlyTheModel", "megatron-core", "1F1B", "TRN-23"),
    (f"{WRONG}:ClipsByOwnNorm", "megatron-core", "1F1B", "TRN-24"),
    (f"{WRONG}:KeepsEndsApart", "megatron-core", "1F1B", "TRN-8"),
    (f"{WRONG}:CountsSharedTwice", "megatron-core", "1F1B", "TRN-21"),
    (f"{WRONG}:ResumesWithoutMoments", "deepspeed", "1F1B", "LIF-10"),
    (f"{WRONG}:SavesOnlyTheModel", "megatron-core", "1F1B", "LIF-10"),
    (f"{WRONG}:SavesNoOptimizer", "colossalai", "1F1B", "LIF-10"),
    (f"{WRONG}:DividesTwice", "colossalai", "1F1B", "TRN-3"),
    (f"{WRONG}:DividesTwiceInNanotron", "nanotron", "1F1B", "TRN-3"),
    (f"{WRONG}:DividesTwiceInAutoModel", "nemo-automodel", "1F1B", "TRN-3"),
    (f"{WRONG}:DividesTwiceInOlmoCore", "ai2-olmo-core", "1F1BV", "TRN-3"),
    (f"{WRONG}:DividesTwiceInInternEvo", "InternEvo", "ZBVZeroBubble", "TRN-3"),
    (f"{WRONG}:DividesTwiceInGalvatron", "hetu-galvatron", "1F1B", "TRN-3"),
    (f"{WRONG}:DividesInPicotron", "picotron", "1F1B", "TRN-3"),
    (f"{WRONG}:DividesTwiceInTorchtitan", "torchtitan", "1F1B", "TRN-3"),
    (f"{WRONG}:DividesTwiceInZeroBubble", "zero-bubble", "ZB1P", "TRN-3"),
    (f"{WRONG}:DividesTwiceInApex", "apex", "1F1B", "TRN-3"),
    (f"{WRONG}:ExportsInTraining", "accelerate", "GPipe", "TRN-9"),
    (f"{ENGINES / 'exporting.py'}:ComputesTwice", None, "GPipe", "SCH-1"),
    (f"{WRONG}:KeepsOwnersApart", "dualpipe", "DualPipe", "TRN-1"),
    (f"{ENGINES / 'two_direction.py'}:HalfGradients", None, "DualPipe", "TRN-1"),
    (f"{ENGINES / 'tracing.py'}:Undivided", None, "GPipe", "TRN-3"),
    (f"{ENGINES / 'tracing.py'}:Enlarges", None, "GPipe", "FWD-1"),
]


def _require(distribution: str | None) -> None:
    if distribution is None:
        return
    wanted = f"{distribution}=={RELEASES[distribution]}"
    found = installed_release(distribution)
    if found is None:
        pytest.skip(f"needs {wanted}, which is not installed")
    if found != RELEASES[distribution]:
        pytest.skip(f"needs {wanted}, but {found} is installed")


def test_of_stages_that_graphs_compute_only_what_they_return_is_judged():
    """What is carried from stage to stage is not seen, and is right: its outputs and gradients are."""
    inside = ("SCH-1", "SCH-7", "LIF-7")
    with campaign_of(_options(f"{ENGINES / 'tracing.py'}:Tracing", (1, 1))) as campaign:
        found = _statuses(campaign, ("FWD-4", "FWD-34", "TRN-22", "LIF-3", *inside), "GPipe")

    assert found == {
        **dict.fromkeys(("FWD-4", "FWD-34", "TRN-22", "LIF-3"), "passed"),
        **dict.fromkeys(inside, "not_claimed"),
    }


def _statuses(campaign: Campaign, asked: tuple[str, ...], schedule: str) -> dict[str, str]:
    cells = [judge_cell(campaign, requirement(one), schedule) for one in asked]
    return {cell.requirement: cell.status for cell in cells}


def _options(implementation: str, ranks: tuple[int, int]) -> Options:
    assert profile("smoke").search == 0
    return Options(implementation=implementation, profile="smoke", examples=3, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "distribution", "schedule", "ranks"), CASES)
def test_an_engine_passes_what_it_claims(implementation, distribution, schedule, ranks):
    _require(distribution)
    with campaign_of(_options(implementation, ranks)) as campaign:
        found = _statuses(campaign, ASKED, schedule)

    # in a single process no rank is without the output, and no stage can lie elsewhere
    alone = dict.fromkeys(("FWD-3", "SCH-7"), "nothing_compared") if ranks == (1, 1) else {}
    assert {row: status for row, status in found.items() if status != "passed"} == {
        **{row: status for row, status in alone.items() if row in ASKED},
        **dict.fromkeys(NOT_CLAIMED.get(Path(implementation).stem, ()), "not_claimed"),
        **KNOWN.get((implementation, schedule), {}),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "distribution", "schedule", "ranks"),
    [case for case in CASES if case[3] != (1, 1) and case[2] not in ("Interleaved1F1B", "DualPipeV")],
)
def test_what_the_stages_of_an_engine_need_crosses(implementation, distribution, schedule, ranks):
    """Under the engine's first schedule: a small run judges communication under no other."""
    _require(distribution)
    with campaign_of(_options(implementation, ranks)) as campaign:
        assert _statuses(campaign, ("COM-7",), schedule) == {"COM-7": "passed"}


@pytest.mark.parametrize(("implementation", "distribution", "schedule", "broken"), MISTAKES)
def test_a_wrong_use_of_an_engine_is_found(implementation, distribution, schedule, broken):
    _require(distribution)
    ranks = (1, 1) if schedule == "GPipe" and distribution != "accelerate" else (2, 2)
    with campaign_of(_options(implementation, ranks)) as campaign:
        found = _statuses(campaign, (broken,), schedule)

    assert found == {broken: "failed"}


@pytest.mark.slow
def test_outputs_that_are_freed_while_they_are_sent_are_noticed():
    """Finding E14: what the next stage is given is chance, but not in every case of several requirements."""
    _require("megatron-core")
    asked = ("FWD-1", "TRN-1", "SCH-1", "TRN-14")
    with campaign_of(_options("megatron-lm", (2, 2))) as campaign:
        found = _statuses(campaign, asked, "Interleaved1F1B")

    assert not {"failed", "flaky"}.isdisjoint(found.values()), found


@pytest.mark.slow
def test_messages_that_are_swapped_on_two_ranks_are_noticed():
    """Finding E68; on three ranks there is nothing to notice."""
    _require("megatron-core")
    with campaign_of(_options("megatron-batched", (2, 2))) as campaign:
        found = _statuses(campaign, ("FWD-1", "TRN-1"), "Interleaved1F1B")

    assert found == {"FWD-1": "failed", "TRN-1": "blocked"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "asked", "found"),
    [
        ("Interleaved1F1B", ("FWD-1", "TRN-5"), {"FWD-1": "passed", "TRN-5": "failed"}),
        (
            "ZBVZeroBubble",
            ("FWD-1", "FWD-28", "SCH-9"),
            {"FWD-1": "passed", "FWD-28": "crashed", "SCH-9": "error"},
        ),
    ],
)
def test_what_is_known_of_colossalai_is_seen(schedule, asked, found):
    """Findings E16, E18 and E19."""
    _require("colossalai")
    with campaign_of(_options("colossalai", (2, 2))) as campaign:
        assert _statuses(campaign, asked, schedule) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "ranks", "found"),
    [
        ("1F1B", (2, 2), {"SCH-9": "error", "FWD-12": "hung"}),
        ("GPipe", (1, 1), {"ERR-11": "failed"}),
    ],
)
def test_what_is_known_of_nanotron_is_seen(schedule, ranks, found):
    """Findings E29, E30 and E31."""
    _require("nanotron")
    with campaign_of(_options("nanotron", ranks)) as campaign:
        assert _statuses(campaign, tuple(found), schedule) == found


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_what_is_known_of_picotron_is_seen(schedule):
    """Findings E41 and E82."""
    _require("picotron")
    found = {"FWD-24": "error", "TRN-3": "failed"}
    with campaign_of(_options("picotron", (2, 2))) as campaign:
        assert _statuses(campaign, tuple(found), schedule) == found


@pytest.mark.slow
def test_what_is_known_of_apex_is_seen():
    """Finding E105, which takes two replicas of two stages."""
    _require("apex")
    with campaign_of(replace(_options("apex", (4, 4)), examples=12)) as campaign:
        assert _statuses(campaign, ("DPC-1",), "1F1B") == {"DPC-1": "failed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "found"),
    [
        ("accelerate", {"FWD-2": "failed"}),
        ("accelerate-gathered", {"FWD-1": "error"}),
        ("accelerate-unpadded", {"LIF-4": "failed"}),
    ],
)
def test_what_is_known_of_accelerate_is_seen(implementation, found):
    """Findings E27, E97 and E103."""
    _require("accelerate")
    with campaign_of(_options(implementation, (2, 2))) as campaign:
        assert _statuses(campaign, tuple(found), "GPipe") == found


NAMED = ("SCH-2", "SCH-3", "LIF-3", "LIF-7")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("TwoDirection", {"SCH-2": "not_claimed", "SCH-3": "not_claimed", "LIF-7": "not_claimed"}),
        ("DualPipe", {}),
        ("ForwardsFirst", {"SCH-2": "failed", "SCH-3": "blocked", "LIF-7": "blocked"}),
    ],
)
def test_an_engine_of_two_directions_is_judged_by_the_name_that_it_claims(name, broken):
    with campaign_of(_options(f"{ENGINES / 'two_direction.py'}:{name}", (2, 2))) as campaign:
        found = _statuses(campaign, NAMED, "DualPipe")

    assert {row: status for row, status in found.items() if status != "passed"} == broken
