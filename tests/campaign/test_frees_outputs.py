"""What is recorded leaves the memory of an engine's tensors as it was: it can be freed, and given back."""

from pathlib import Path

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

FREES = f"{Path(__file__).with_name('frees_outputs.py')}:FreesOutputs"
STEP = Train(batch_size=4, num_microbatches=2)
CASE = Case(
    model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)), Stage(blocks=(blocks.Linear(),)))),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(STEP, Zero(), STEP),
)


def test_an_engine_that_frees_memory_is_as_free_to_do_so_when_it_is_observed():
    with Pools(
        preload=("torch", "torch.distributed", "pipeconform.execute.worker", "pipeconform.oracle.full_model")
    ) as pools:
        executor = Executor(implementation=FREES, description=describe(pools, FREES), pools=pools)
        for observed in ("memory", "reductions", "timeline", "traffic"):
            execution = executor.execute(CASE, observe=(observed,))

            assert execution.verdicts.ok, f"{observed}:\n{execution.verdicts.describe()}"
            assert judge(requirement("FWD-1"), execution, executor) == ()
