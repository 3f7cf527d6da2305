"""A program has the parameters, the inputs and the results of its case, bit for bit."""

import pytest
import torch

from pipeconform.adapter import GradientScale
from pipeconform.case import blocks
from pipeconform.case.build.data import make_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Case, LossSpec, Model, Passage, Stage, Train, World
from pipeconform.case.world import World as Processes
from pipeconform.oracle.full_model import reference
from tests.export.plain.conftest import question_of, written

ALL = (
    blocks.Linear(),
    blocks.Linear(bias=False, frozen=True),
    blocks.Mlp(),
    blocks.Norm(),
    blocks.Attention(),
    blocks.Decoder(),
    blocks.Decoder(kv_heads=2),
    blocks.BatchNorm(),
    blocks.Shared(),
    blocks.Counting(),
    blocks.Counting(expanded=True),
    blocks.Unused(),
    blocks.Branch(),
    blocks.Bypass(),
    blocks.Inplace(),
    blocks.Activation(),
    blocks.Activation(kind="relu"),
    blocks.Activation(kind="sigmoid"),
    blocks.Activation(kind="softmax"),
    blocks.Hooked(),
    blocks.Pieces(how="chunk"),
    blocks.Pieces(how="split"),
    blocks.Pieces(how="unbind"),
    blocks.Common(),
    blocks.Offsets(),
    blocks.Combined(),
    blocks.Combined(how="rows"),
    blocks.Joined(),
    blocks.Accumulating(),
    blocks.GradientHooked(),
    blocks.GradientHooked(on="module"),
    blocks.Deferred(),
    blocks.Layout(),
    blocks.Layout(kind="expanded"),
    blocks.Auxiliary(),
    blocks.Checkpointed(),
    blocks.Checkpointed(reentrant=True),
    blocks.Stateful(),
    blocks.Tied(),
    blocks.Tied(what="bias"),
)


def case_of(model, *, schedule="GPipe", loss=None, batch=5, world=None):
    p = len(model.stages)
    return Case(
        model=model,
        schedule=schedule,
        world=world or World(size=p, pipeline_ranks=tuple(range(p))),
        loss=loss or LossSpec(),
        program=(Train(batch_size=batch, num_microbatches=2),),
        seed=3,
    )


def model_of(*several, **fields):
    stages = tuple(Stage(blocks=(blocks.Linear(), *each)) for each in several)
    return Model(**{"width": 3, "sequence": 2, "stages": stages, **fields})


CASES = {
    **{f"{one!r}": case_of(model_of((one,), (blocks.Linear(),))) for one in ALL},
    "no sequence": case_of(model_of((), (blocks.Norm(),), sequence=0)),
    "float32": case_of(model_of((), (), dtype="float32")),
    "hooks on inputs": case_of(
        Model(
            width=3,
            sequence=2,
            stages=(Stage(blocks=(blocks.Linear(),)), Stage(blocks=(blocks.InputHooked(), blocks.Linear()))),
        )
    ),
    "an input changed in place": case_of(
        Model(width=3, stages=(Stage(blocks=(blocks.Rescaled(),)), Stage(blocks=(blocks.Linear(),))))
    ),
    "a stage that keeps its inputs": case_of(
        Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)), Stage(blocks=(blocks.Keeping(),))))
    ),
    "a sum": case_of(model_of((), ()), loss=LossSpec(reduction="sum")),
    "frozen": case_of(
        Model(
            width=3, stages=(Stage(blocks=(blocks.Linear(),), frozen=True), Stage(blocks=(blocks.Linear(),)))
        )
    ),
    **{
        f"passes {kind}": case_of(
            model_of(
                (), (), (), container="list", passages=(Passage(kind=kind, source=0, last=2, users=(1, 2)),)
            )
        )
        for kind in ("summed", "turned", "complex")
    },
}


def names_of(case):
    """The names that the program's text defines; nothing is run."""
    text = written(question_of(case, "TRN-1", "gradient value"))
    found = {"__name__": "program"}
    exec(compile(text, "program.py", "exec"), found)
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_parameters_inputs_and_gradients_are_those_of_the_case(case):
    program = names_of(case)

    for s in range(case.num_stages):
        right = [value for _, value in build_stage(case, s).named_parameters()]
        mine = [value for _, value in program["build"](s).named_parameters()]
        assert all(
            torch.equal(a, b) and a.requires_grad == b.requires_grad for a, b in zip(right, mine, strict=True)
        )
    batch = make_batch(case, 0)
    *args, target = program["batch"](0)
    assert all(torch.equal(a, b) for a, b in zip((*batch.args, batch.target), (*args, target), strict=True))

    expected = reference(case, scale=GradientScale(at="loss")).steps[0].gradients
    (found,) = program["on_full_model"]()
    values = [value for s in range(case.num_stages) for value in expected[s].values()]
    for right, mine in zip(values, found.values(), strict=True):
        if right is None:
            assert mine is None
        else:
            torch.testing.assert_close(mine, right.tensor())


def test_every_replica_has_its_own_data():
    from pipeconform.case.replicas import Replicas

    world = Processes(size=2, pipeline_ranks=(0,), replicas=Replicas(others=((1,),)))
    program = names_of(case_of(model_of(()), world=world))

    for replica in (0, 1):
        right = make_batch(case_of(model_of(()), world=world), 0, replica=replica)
        x, target = program["batch"](0, replica)
        assert torch.equal(x, right.args[0])
        assert torch.equal(target, right.target)


def test_classes_are_copied_only_where_they_are_used():
    assert "class " not in written(question_of(CASES["no sequence"], "TRN-1", "gradient value"))
