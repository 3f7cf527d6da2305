"""Real engines on real processes: what is observed is what they are known to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeconform.adapter import Placement
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.case.blocks import Linear, Mlp, Norm
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.judge.named import expected_order
from pipeconform.judge.timeline import executed
from pipeconform.ranks.pools import Pools
from pipeconform.schedule import generate

ENGINES = {
    "torch": "pipeconform.adapters.torch_pipelining:TorchPipelining",
    "reference": "pipeconform.reference_impl.adapter:ReferenceAdapter",
}
RUNS = [
    ("1F1B", "one_f_one_b", 2, 1, 3),
    ("InterleavedZeroBubble", "interleaved_zero_bubble", 2, 2, 4),
    ("ZBVZeroBubble", "zb_v", 2, 2, 3),
    ("DualPipeV", "dualpipe_v", 2, 2, 4),
    ("GPipe", "gpipe", 1, 1, 2),
    ("ZBVZeroBubble", "zb_v", 1, 2, 2),
]


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    preload = ("torch", "torch.distributed", "pipeconform.execute.worker", "pipeconform.oracle.full_model")
    with Pools(preload=preload) as made:
        yield made


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_run_what_they_are_known_to_run(pools: Pools, engine: str) -> None:
    reference = ENGINES[engine]
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    for name, family, p, v, m in RUNS:
        claim = executor.capabilities.schedule(name)
        assert claim is not None
        assert claim.placement is (Placement.V if v == 2 and "Inter" not in name else Placement.LOOP)
        train = Train(batch_size=2 * m, num_microbatches=m)
        blocks = ((Mlp(), Norm()), (Linear(),), (Norm(), Linear()), (Mlp(),))
        case = Case(
            model=Model(width=4, stages=tuple(Stage(blocks=blocks[s]) for s in range(p * v))),
            schedule=name,
            stages_per_rank=v,
            world=World(size=p, pipeline_ranks=tuple(range(p))),
            program=(train, Zero(), train),
        )
        execution = executor.execute(case, observe=("timeline",))
        assert execution.outcome() is None
        table = generate(family, num_ranks=p, stages_per_rank=v, num_microbatches=m)
        for step in (0, 2):
            ranks = executed(executor.evidence(execution), step)
            due = expected_order(table, ranks)
            for one in ranks:
                assert list(one.actions) == [action for action, _ in due[one.pipeline_rank]]
            assert not any(one.strangers or one.stale or one.recomputed for one in ranks)
            assert step == 0 or not any(one.probes for one in ranks)


def test_nothing_is_observed_unasked(pools: Pools) -> None:
    reference = ENGINES["reference"]
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    train = Train(batch_size=2, num_microbatches=1)
    case = Case(
        model=Model(width=2, stages=(Stage(blocks=(Linear(),)),)),
        schedule="GPipe",
        world=World(size=1, pipeline_ranks=(0,)),
        program=(train,),
    )

    assert executor.execute(case).shown[0].steps[0].events is None
    assert executor.execute(case).shown[0].table is None
    assert executor.execute(case, observe=("timeline",)).shown[0].table is not None
