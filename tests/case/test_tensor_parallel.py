"""Stages that are cut over ranks, as data: what cannot be, who holds what, and what is drawn."""

import dataclasses

import pytest

from pipeconform.adapter import TensorParallelClaim
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case import blocks
from pipeconform.case.case import Kwarg, Model, Stage, Train, World, decode_case, encode_case
from pipeconform.case.draw.claimed import is_claimed, reachable
from pipeconform.case.draw.registry import of_form
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.replicas import Replicas
from pipeconform.case.tensor_parallel import TensorParallel, cut_dim, layers_of
from pipeconform.errors import BadCaseError
from pipeconform.report.case_text import describe_case
from tests.case.examples import EVERYTHING, small_case, with_model

MODEL = Model(
    width=4,
    sequence=2,
    stages=(Stage(blocks=(blocks.Mlp(), blocks.Linear())), Stage(blocks=(blocks.Norm(), blocks.Linear()))),
)


def world(*, replicas=None, size=4, **changes):
    made = {"others": ((2, 3),), "maps": "column", "stream": "sequence", **changes}
    return World(size=size, pipeline_ranks=(0, 1), replicas=replicas, tensor=TensorParallel(**made))


def test_a_case_says_which_pipelines_are_replicas_and_which_are_parts():
    replicas = Replicas(others=((1, 5),), wrapper="fully_shard")
    made = World(
        size=8,
        pipeline_ranks=(0, 4),
        replicas=replicas,
        tensor=TensorParallel(others=((2, 6), (3, 7)), maps="row"),
    )

    assert (made.num_replicas, made.num_tensor_ranks) == (2, 2)
    assert [made.replica_of(rank) for rank in (0, 1, 2, 3)] == [0, 1, 0, 1]
    assert [made.pipeline_of(rank) for rank in (4, 5, 6, 7)] == [0, 1, 2, 3]


def test_a_case_survives_the_file_and_is_told_in_words():
    case = small_case(model=MODEL, world=world())

    assert b"tensor" not in encode_case(small_case())
    assert decode_case(encode_case(case)) == case
    told = "cut       2 parts, the other on ranks 2, 3; maps by columns, the sequence in between"
    assert told in describe_case(case)
    crossing = small_case(model=MODEL, world=world(maps="", stream="whole", boundary="width"))
    assert "DTensors between stages, cut in the width" in describe_case(crossing)
    given = {"maps": "", "stream": "whole", "batch": "samples", "target": "whole"}
    batch = small_case(model=MODEL, world=world(**given), program=(Train(batch_size=8, num_microbatches=2),))
    assert "a batch of DTensors, cut in the samples, whole targets" in describe_case(batch)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"others": ((2,),)}, "as many ranks each"),
        ({"others": ((1, 2),)}, "distinct ranks"),
        ({"others": ((3, 4),)}, "below world.size 4"),
        ({"others": ((3, 2),)}, "ascend"),
        ({"others": ()}, "one pipeline, or more"),
        ({"maps": ""}, "one of maps, boundary and batch"),
        ({"boundary": "width"}, "one of maps, boundary and batch"),
        ({"batch": "samples"}, "one of maps, boundary and batch"),
        ({"target": "whole"}, "needs world.tensor.batch"),
        ({"stream": "whole"}, r"cannot cut Norm\(\): expected Linear, Mlp"),
        ({"replicas": Replicas(others=((1, 3),))}, "distinct ranks"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(BadCaseError, match=words):
        small_case(model=MODEL, world=world(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_requires_grad": True}, "arguments without gradients"),
        ({"output": "tuple"}, "from one tensor to one tensor"),
        ({"kwargs": (Kwarg(stage=1),)}, "only where every rank has the whole stream"),
        ({"sequence": 3}, "must be a multiple"),
    ],
)
def test_batches_that_cannot_be_cut_are_refused(changes, words):
    placed = world(maps="", stream="whole", batch="sequence")
    case = small_case(model=MODEL, world=placed, program=(Train(batch_size=4, num_microbatches=2),))

    with pytest.raises(BadCaseError, match=words):
        with_model(case, **changes)


@pytest.mark.parametrize("samples", [2, 6, 7])
def test_samples_are_cut_into_equal_parts_for_every_microbatch(samples):
    placed = world(maps="", stream="whole", batch="samples")
    with pytest.raises(BadCaseError, match=f"cuts {samples} samples over 2 ranks, .* multiple of 4"):
        small_case(model=MODEL, world=placed, program=(Train(batch_size=samples, num_microbatches=2),))


def test_replicas_of_cut_stages_are_sharded():
    pipelines = {"replicas": Replicas(others=((2, 3),)), "others": ((4, 5), (6, 7)), "size": 8}
    with pytest.raises(BadCaseError, match="DistributedDataParallel takes no cut parameters"):
        small_case(model=MODEL, world=world(**pipelines))


def test_a_rank_that_has_the_whole_stream_takes_keyword_arguments():
    linear = (Stage(blocks=(blocks.Linear(),)), Stage(blocks=(blocks.Mlp(),)))
    model = Model(width=4, sequence=2, stages=linear, kwargs=(Kwarg(stage=1),))

    assert small_case(model=model, world=world(maps="row", stream="whole")).model.kwargs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence": 3}, "must be a multiple"),
        ({"sequence": 0}, "must be a multiple"),
        ({"container": "tuple"}, "one tensor per boundary"),
        ({"tied": (0, 1)}, "one tensor per boundary"),
        ({"kwargs": (Kwarg(stage=1),)}, "only where every rank has the whole stream"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(changes, words):
    with pytest.raises(BadCaseError, match=words):
        with_model(small_case(model=MODEL, world=world()), **changes)


def test_layers_are_cut_so_that_they_fit_together():
    tensor = TensorParallel(others=((2, 3),), maps="row", stream="sequence")
    first, second = (layers_of(tensor, MODEL, s) for s in range(2))

    assert {name: (one.style, one.takes, one.gives) for name, one in first.items()} == {
        "blocks.0.up": ("column", "sequence", "width"),
        "blocks.0.down": ("row", "width", "sequence"),
        "blocks.1": ("row", "sequence", "sequence"),
    }
    assert second["blocks.0"].style == "sequence"
    dims = {name: cut_dim(first, name) for name in ("blocks.0.up.bias", "blocks.1.weight", "blocks.1.bias")}
    assert dims == {"blocks.0.up.bias": 0, "blocks.1.weight": 1, "blocks.1.bias": None}
    assert cut_dim(second, "blocks.0.weight") is None


@pytest.mark.parametrize("focus", sorted(of_form("tensor parallel")))
def test_drawn_cases_are_about_their_focus_and_fit_into_the_world(focus):
    limits = Limits(capabilities=EVERYTHING, max_ranks=4)
    found = []
    for claim in EVERYTHING.schedules:
        if not claim.trains:
            assert not is_claimed(focus, claim, EVERYTHING)
            continue
        if reachable(limits, claim, focus):
            found += drawn(Corpus(limits=limits, schedule=claim, focus=focus, seed=0, size=12))

    assert len(found) >= 10  # of pairs, few suit stages that are cut
    for case in found:
        assert traits(case) == {focus}
        assert case.world.size == case.num_ranks * len(case.world.pipelines) <= 4
        assert case.world.num_tensor_ranks > 1
    assert len({case.world.pipelines for case in found}) >= 3


def test_everything_that_is_claimed_of_cuts_is_drawn():
    limits = Limits(capabilities=EVERYTHING, max_ranks=4)
    claim = EVERYTHING.schedules[0]
    cut = [
        case.world
        for case in drawn(Corpus(limits=limits, schedule=claim, focus=Focus.TENSOR, seed=0, size=40))
    ]

    assert {(one.tensor.maps, one.tensor.stream) for one in cut} == {
        (maps, stream) for maps in ("column", "row") for stream in ("whole", "sequence")
    }
    assert {one.num_replicas for one in cut} == {1, 2}
    assert {len(one.pipeline_ranks) for one in cut} == {1, 2}


def test_every_claimed_placement_of_a_batch_is_drawn_with_both_placements_of_targets():
    claim = EVERYTHING.schedules[0]
    limits = Limits(capabilities=EVERYTHING, max_ranks=4)
    cases = drawn(Corpus(limits=limits, schedule=claim, focus=Focus.PLACED_BATCH, seed=0, size=60))

    cut = [(held, target) for held in ("samples", "sequence", "width") for target in ("alike", "whole")]
    assert {(one.world.tensor.batch, one.world.tensor.target) for one in cases} == {*cut, ("whole", "alike")}
    # the first is the one with most to go wrong
    assert (cases[0].world.tensor.batch, cases[0].world.tensor.target) == ("samples", "whole")
    assert cases[0].runs[0].num_microbatches > 1


def test_nothing_is_drawn_that_is_not_claimed_or_does_not_fit():
    claim = EVERYTHING.schedules[0]
    none = dataclasses.replace(EVERYTHING, tensor_parallel=None)
    whole = dataclasses.replace(EVERYTHING, tensor_parallel=TensorParallelClaim())

    assert not any(is_claimed(focus, claim, none) for focus in of_form("tensor parallel"))
    assert is_claimed(Focus.TENSOR, claim, whole)
    assert not is_claimed(Focus.PLACED, claim, whole)
    assert not is_claimed(Focus.PLACED_BATCH, claim, whole)
    assert not reachable(Limits(capabilities=EVERYTHING, max_ranks=1), claim, Focus.TENSOR)
    for case in drawn(
        Corpus(limits=Limits(capabilities=whole), schedule=claim, focus=Focus.TENSOR, seed=0, size=12)
    ):
        assert case.world.replicas is None
        assert case.world.tensor.stream == "whole"
