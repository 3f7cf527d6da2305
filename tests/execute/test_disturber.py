"""What a case says befalls its ranks really does, at that place, and it changes no result.

Durations are held to their lower end only: a loaded machine makes all of them longer.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.case.perturbations import Perturbation, SlowLink
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import Died, Raised, Stuck
from tests.case.examples import small_case


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=("torch", "torch.distributed", "pipeconform.execute.worker")) as made:
        yield made


@pytest.fixture(scope="module", params=["reference", "torch"])
def executor(request, pools):
    return Executor(
        implementation=request.param, description=describe(pools, request.param), pools=pools, time_limit=60
    )


def perturbed(*perturbations):
    case = small_case()
    return structs.replace(case, world=structs.replace(case.world, perturbations=perturbations))


def results(execution):
    """What the ranks computed; a dry run works on whatever its memory holds."""
    return [
        (step.output, step.losses, step.gradients, step.parameters)
        for one in execution.shown
        for step in one.steps
    ]


LATE = [
    # what happens together, and for how long it keeps a rank at least
    ([Perturbation(stage=1, milliseconds=30), Perturbation(stage=0, when="after", milliseconds=30)], 0.12),
    ([Perturbation(stage=1, part="backward", milliseconds=60)], 0.24),
    ([Perturbation(stage=1, part="backward", when="after", run=1, milliseconds=100)], 0.2),
    ([Perturbation(stage=0, microbatch=1, run=1, milliseconds=200)], 0.2),
    ([Perturbation(what="stop", stage=1, microbatch=0, run=1, milliseconds=200)], 0.2),
    ([SlowLink(rank=0, milliseconds=50)], 0.2),
    ([SlowLink(rank=1, side="receive", when="after", milliseconds=50)], 0.2),
]


@pytest.mark.parametrize(("perturbations", "least"), LATE, ids=lambda value: repr(value)[:70])
def test_a_delay_takes_its_time_and_changes_no_result(executor, perturbations, least):
    plain, late = executor.execute(small_case()), executor.execute(perturbed(*perturbations))

    assert plain.verdicts.ok, plain.verdicts.explain()
    assert late.verdicts.ok, late.verdicts.explain()
    assert max(verdict.after for verdict in late.verdicts) >= least
    assert results(plain) == results(late)


@pytest.mark.parametrize(("when", "part"), [("after", "forward"), ("before", "backward")])
def test_an_error_is_raised_where_it_was_asked_for(executor, when, part):
    case = perturbed(Perturbation(what="error", stage=1, part=part, when=when, microbatch=1, run=1))

    verdict = executor.execute(case).verdicts[1]

    assert isinstance(verdict, Raised)
    said = "\n".join([verdict.message, verdict.traceback, *(cause.message for cause in verdict.causes)])
    assert f"deliberate error in stage 1, microbatch 1, {part}" in said


def test_a_killed_rank_died_and_the_next_case_runs(executor):
    case = perturbed(Perturbation(what="kill", stage=0, part="backward", microbatch=0, run=1))

    verdicts = executor.execute(case).verdicts

    assert isinstance(verdicts[0], Died)
    assert verdicts[0].how == "SIGKILL"
    assert executor.execute(small_case()).verdicts.ok


def test_who_waits_in_vain_says_what_it_computed_last_and_what_it_waits_for(pools):
    """A rank that raised stays connected, so that torch's engine waits for it on the other one."""
    executor = Executor(
        implementation="torch", description=describe(pools, "torch"), pools=pools, time_limit=60
    )
    case = perturbed(Perturbation(what="error", stage=1, microbatch=0, run=1))

    verdicts = executor.execute(case, observe=("loneliness", "waits")).verdicts

    assert isinstance(verdicts[1], Raised)
    assert isinstance(verdicts[0], Stuck), verdicts.describe()
    assert verdicts[0].doing == "step 2, last computed: 0F1"
    assert "of float64[2, 3] to rank 1" in verdicts[0].waits or "from rank 1" in verdicts[0].waits
    assert verdicts[0].stage == 0
    assert verdicts.waiting.splitlines()[-1].startswith("rank 0 waits for rank 1, which raised")
