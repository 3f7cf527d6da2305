"""Who is to blame for an exception: mistakes of an adapter and of a machine are no violations of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeconform.campaign.again import judge_again
from pipeconform.campaign.blame import blamed
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.errors import ContractError
from pipeconform.execute.implementation import resolve
from pipeconform.ranks.frames import Frame
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import Cause, Raised
from pipeconform.spec import requirement

FILE = Path(__file__).with_name("mistaken_adapters.py")
CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="1F1B",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=2, num_microbatches=2),),
)
ENGINE = Frame(module="engine.core", file="engine/core.py", line=3, function="start")
OWN = Frame(module="mine", file="mine.py", line=7, function="build", source="start(plan)")


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=(*PRELOAD, "pipeconform.reference_impl.adapter")) as pools:
        yield pools


def judged(pools, name):
    full = resolve(f"{FILE}:{name}")
    executor = Executor(implementation=full, description=describe(pools, full), pools=pools)
    return judge_again(CASE, (requirement("FWD-1"),), PipelineRunner(executor))["FWD-1"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TakesOptions", r"TakesOptions\.build\(plan, options\) is called as build\(plan\)"),
        ("RunsBatch", r"Pipeline\.run\(batch\) is called as run\(mode, batch\)"),
        ("AppliesNothing", r"Pipeline\.apply\(\) is called as apply\(operation\)"),
        ("Imports", r"No module named 'not_there_at_all'\n.* in build\n.*import not_there_at_all\n.*install"),
        ("ImportsName", r"cannot import name 'NoSuchSchedule'"),
        (
            "Misspells",
            r"has no attribute 'stges'\n(.*\n)*.*fix build\(\) in the adapter's file, line \d+",
        ),
        ("Undefined", r"NameError: name 'bach' is not defined\n(.*\n)*.*fix run\(\)"),
        ("Misindexes", r"KeyError: 'first'\n(.*\n)*.*fix gradients\(\)"),
        ("Compares", r"TypeError: '>' not supported(.*\n)*.*fix build\(\)"),
        ("NoDevice", r"no such device or backend: .*CUDA(.*\n)*.*choose another --device"),
        ("NoBackend", r"no such device or backend: .*NCCL(.*\n)*.*choose another --device"),
    ],
)
def test_a_mistake_of_the_adapter_or_the_machine_is_no_violation(pools, name, expected):
    with pytest.raises(ContractError, match=expected) as error:
        judged(pools, name)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "root", "line"),
    [
        ("EngineRaises", "JSONDecodeError", 'json.loads("{nonsense")'),
        ("EngineRaisesUnderneath", "JSONDecodeError", 'json.loads("{nonsense")'),
        ("EngineRaisesInAStep", "RuntimeError", "torch.nn.functional.linear("),
    ],
)
def test_what_an_engine_raises_is_its_own_and_the_line_is_shown(pools, name, root, line):
    (outcome,) = judged(pools, name)

    assert outcome.status == "error"
    assert root in outcome.finding.kind
    assert "ranks 0, 1 raised at\n  campaign/mistaken_adapters.py, line " in outcome.finding.message
    assert line in outcome.finding.message


def test_what_ranks_printed_stands_with_the_verdict(pools):
    (outcome,) = judged(pools, "EngineRaises")

    assert outcome.finding.message.endswith("ranks 0, 1 printed\n  the engine begins")


def test_an_error_that_the_adapter_makes_of_the_engine_s_is_the_engine_s():
    error = Raised("RuntimeError", "no", causes=(Cause("ValueError", "why"),), frames=(OWN, ENGINE))

    assert blamed(error, adapter="mine") == ""


def test_an_error_without_known_frames_is_the_engine_s():
    assert blamed(Raised("NameError", "x"), adapter="mine") == ""
