"""Real engines on real processes: what is kept after a step is told with who keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.observe.observation import Kept
from pipeconform.ranks.pools import Pools

TORCH = "pipeconform.adapters.torch_pipelining:TorchPipelining"
REFERENCE = "pipeconform.reference_impl.adapter:ReferenceAdapter"
GRAPHS_KEPT = f"{Path(__file__).parents[1] / 'campaign' / 'mistaken_engines.py'}:KeepsGraphs"
OUTPUTS_KEPT = "pipeconform.reference_impl.faults.residue:OutputsKept"


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    preload = ("torch", "torch.distributed", "pipeconform.execute.worker", "pipeconform.oracle.full_model")
    with Pools(preload=preload) as made:
        yield made


def _kept(pools: Pools, reference: str, schedule: str = "1F1B") -> list[Kept]:
    """What both ranks kept of the last step."""
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    train = Train(batch_size=3, num_microbatches=3)
    case = Case(
        model=Model(width=2, stages=(Stage(blocks=(Linear(),)),) * 2),
        schedule=schedule,
        stages_per_rank=1,
        world=World(size=2, pipeline_ranks=(0, 1)),
        program=(train, Zero(), train),
    )
    execution = executor.execute(case, observe=("timeline", "memory"))
    assert execution.outcome() is None
    found = [one.steps[-1].kept for one in execution.shown]
    return [one for one in found if one is not None]


def test_torch_keeps_receive_buffers_and_outputs_in_its_stage(pools: Pools) -> None:
    """Findings 24 and 25; since 2.15 buffers are made where something is received."""
    last = _kept(pools, TORCH)[1]

    kept = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
    assert last.holds_input == ("Schedule1F1B._stage.args_recv_info[0][0].buffer" if kept else "")
    assert last.holds_output == "Schedule1F1B._stage.output_chunks[0]"


def test_a_fault_that_keeps_outputs_is_named_from_the_pipeline_on(pools: Pools) -> None:
    assert [one.holds_output for one in _kept(pools, OUTPUTS_KEPT)] == [
        "OutputsKept.stages[0].outputs[0]",
        "OutputsKept.stages[1].outputs[0]",
    ]


def test_an_engine_that_keeps_graphs_is_named_with_what_has_them(pools: Pools) -> None:
    assert _kept(pools, GRAPHS_KEPT, "GPipe")[1].holds_graph == "Pipeline.engine.kept[0].grad_fn"


def test_an_engine_that_keeps_nothing_has_no_holder(pools: Pools) -> None:
    found = [(one.holds_input, one.holds_output, one.holds_graph) for one in _kept(pools, REFERENCE)]

    assert found == [("", "", "")] * 2
