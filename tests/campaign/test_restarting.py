"""A pipeline that saves is closed, and another one with other parameters takes its place when all have saved."""

from pathlib import Path

import pytest
from msgspec import structs
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.campaign.corpus import Corpus
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Adam, Case, Model, Optimize, Restart, Sgd, Stage, Train, World, Zero
from pipeconform.case.focus import Limits
from pipeconform.claims import GradientScale
from pipeconform.execute.restarting import begun_anew
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.oracle.full_model import reference
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

FILE = Path(__file__).with_name("saving_engines.py")
UPDATE = (Train(batch_size=4, num_microbatches=2), Optimize(), Zero())
CASE = Case(
    model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)), Stage(blocks=(blocks.Linear(),)))),
    schedule="GPipe",
    world=World(size=3, pipeline_ranks=(0, 2)),
    program=(*UPDATE, Restart(), *UPDATE),
    optimizer=Sgd(lr=0.125, momentum=0.5),
)


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=PRELOAD) as pools:
        yield pools


def executed(pools, implementation, case=CASE):
    executor = Executor(
        implementation=implementation, description=describe(pools, implementation), pools=pools
    )
    return executor, executor.execute(case)


def drawn(name):
    """The cases of the reference under GPipe and 1F1B, in float64, at profile full's size."""
    capabilities = ReferenceAdapter().describe().capabilities
    judgement = JUDGEMENTS[name]
    for claim in capabilities.schedules[1:3]:
        limits = Limits(capabilities=capabilities, min_ranks=1, max_ranks=2)
        for focus in judgement.foci(claim, capabilities):
            corpus = Corpus(limits=limits, schedule=claim, focus=focus, seed=0, size=30)
            yield from (case for case in corpus.drawn() if case.model.dtype == "float64")


def test_all_ranks_have_saved_before_one_restores_with_other_parameters(pools):
    executor, execution = executed(pools, f"{FILE}:NotesThem")

    assert execution.verdicts.ok, execution.verdicts.describe()
    assert judge(requirement("LIF-10"), execution, executor) == ()


@pytest.mark.parametrize(
    "implementation",
    [
        "pipeconform.reference_impl.adapter:ReferenceAdapter",
        "pipeconform.adapters.torch_pipelining:TorchPipelining",
    ],
)
def test_a_training_is_resumed_twice(pools, implementation):
    case = structs.replace(CASE, program=(*UPDATE, Restart(), *UPDATE, Restart(), *UPDATE))
    executor, execution = executed(pools, implementation, case)

    assert judge(requirement("LIF-10"), execution, executor) == ()


def test_the_pipeline_that_is_built_does_not_count_as_computing(pools):
    _, execution = executed(pools, f"{FILE}:NotesThem")

    at = CASE.program.index(Restart())
    assert [one.steps[at].forwards for one in execution.shown] == [()] * 3


def test_a_claim_without_the_methods_is_a_breach_of_the_contract(pools):
    _, execution = executed(pools, f"{FILE}:CannotSave")

    assert "lacks save() and restore(), but Feature.SAVING is claimed" in execution.verdicts.describe()


@pytest.mark.parametrize(
    ("implementation", "words"),
    [
        ("RestoresNothing", "lacks restore(), but Feature.SAVING is claimed"),
        ("AsksForMore", "AsksForMorePipeline.restore(folder, strict) is called as restore(folder)"),
        ("SavesElsewhere", "the folder that it was given is empty; write there what restore() reads"),
    ],
)
def test_what_is_wrong_with_the_methods_is_named(pools, implementation, words):
    _, execution = executed(pools, f"{FILE}:{implementation}")

    assert words in execution.verdicts.describe()


def test_the_name_of_the_folder_is_in_no_message(pools):
    _, execution = executed(pools, f"{FILE}:QuotesTheFolder")

    assert execution.outcome().finding.kind == "raised RuntimeError: nothing in <folder>/saved"


@pytest.mark.parametrize("name", ["LIF-10", "TRN-14"])
def test_what_adam_does_is_held_against_finite_bounds(name):
    """Adam makes noise of gradients that are zero but for rounding: then every bound would be infinite."""
    found = [case for case in drawn(name) if isinstance(case.optimizer, Adam) and case.optimizer.lr]

    assert len(found) > 1
    for case in found:
        right = reference(case, scale=GradientScale(), bounds="running")
        last = [one for one in right.steps if isinstance(case.program[one.step], Optimize)][-1]
        bounds = [one.tensor() for named in last.parameter_bounds.values() for one in named.values()]
        assert sum(bool((one < case.optimizer.lr).all()) for one in bounds) > len(bounds) / 2, case


def test_only_the_parameters_differ_in_the_pipeline_that_takes_over():
    other = begun_anew(CASE)

    assert other.seed != CASE.seed
    assert structs.replace(other, seed=CASE.seed) == CASE
