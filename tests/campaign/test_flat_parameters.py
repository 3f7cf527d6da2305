"""An engine is not accused of what a processor computes otherwise because parameters lie elsewhere in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch.nn import functional

from pipeconform.campaign.again import judge_again
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Model, Stage, Train, World, Zero
from pipeconform.execute.implementation import resolve
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

FILE = Path(__file__).with_name("flat_engine.py")
TRAIN = Train(batch_size=4, num_microbatches=4)
PLAIN = Case(
    model=Model(width=6, stages=(Stage(blocks=(blocks.Mlp(),)),) * 2, dtype="float32"),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(TRAIN, Zero(), TRAIN, Eval(batch_size=4, num_microbatches=4)),
    seed=3,
)
MERGED = structs.replace(PLAIN, model=structs.replace(PLAIN.model, merged=("turned", "whole", "total")))


@pytest.fixture(scope="module")
def outcomes():
    with Pools(preload=(*PRELOAD, "pipeconform.reference_impl.adapter")) as pools:
        full = resolve(f"{FILE}:Flat")
        runner = runner_of(describe(pools, full), implementation=full, pools=pools)

        yield lambda case, *ids: judge_again(case, [requirement(one) for one in ids], runner)


@pytest.fixture(scope="module", autouse=True)
def _computed_otherwise():
    """Skip on processors that compute the same wherever parameters lie: the tests would test nothing."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(50):
        weight, x = torch.randn(6, 6, generator=generator), torch.randn(1, 6, generator=generator)
        flat = torch.cat([torch.zeros(1), weight.reshape(-1)])
        found.append(torch.equal(functional.linear(x, flat[1:].view(6, 6)), functional.linear(x, weight)))
    if all(found):
        pytest.skip("this processor computes the same wherever parameters lie")


def test_outputs_boundaries_and_gradients_are_right(outcomes):
    ids = ("FWD-1", "FWD-2", "FWD-8", "TRN-1", "TRN-2", "SCH-1")

    assert outcomes(PLAIN, *ids) == dict.fromkeys(ids, ())


def test_outputs_are_merged_by_their_rules(outcomes):
    assert outcomes(MERGED, "FWD-23") == {"FWD-23": ()}
