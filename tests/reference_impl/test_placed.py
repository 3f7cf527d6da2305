"""Batches of DTensors on real ranks: what is split and joined where it lies, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from pipeconform.reference_impl import placed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pipeconform import run_on_ranks
from pipeconform.adapter import Batch, Microbatch
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.execute.placed_batch import placed_batch

WHOLE = torch.arange(24.0).reshape(8, 3)


def _split(tensor, *, parts):
    return [placed.part_of(tensor, start, 4, batch_dim=0, parts=parts) for start in (0, 4)]


def _parts():
    """Per placement, this rank's rows of two microbatches, their global shapes, and what comes of joining them."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {}
    for name, placement, parts in (("cut", Shard(0), 2), ("whole", Replicate(), 2), ("width", Shard(1), 1)):
        made = _split(distribute_tensor(WHOLE, mesh, [placement]), parts=parts)
        back = placed.joined(made, batch_dim=0)
        assert all(one.placements == (placement,) for one in (*made, back))
        found[name] = [one.to_local().tolist() for one in made], [list(one.shape) for one in made]
        found[name] += back.full_tensor().tolist(), back.stride()
    return found


def test_of_samples_that_are_cut_every_rank_splits_its_own_and_of_whole_ones_the_same_samples():
    ranks = run_on_ranks(_parts, ranks=2).values
    rows = WHOLE.tolist()

    for rank, found in enumerate(ranks):
        own = rows[4 * rank : 4 * rank + 4]
        cut, shapes, joined, stride = found["cut"]
        assert (cut, shapes) == ([own[:2], own[2:]], [[4, 3]] * 2)
        assert (joined, stride) == (rows, (3, 1))
        whole, _, joined, _ = found["whole"]
        assert whole == [[*rows[0:2], *rows[4:6]], [*rows[2:4], *rows[6:8]]]
        assert joined == [*whole[0], *whole[1]]
        # three columns over two ranks: two and one
        columns = slice(0, 2) if rank == 0 else slice(2, 3)
        width, shapes, joined, _ = found["width"]
        assert width == [[row[columns] for row in rows[start : start + 4]] for start in (0, 4)]
        assert (shapes, joined) == ([[4, 3]] * 2, rows)


def _cut_into():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    cut, whole = distribute_tensor(WHOLE, mesh, [Shard(0)]), distribute_tensor(WHOLE, mesh, [Replicate()])
    said = [placed.parts_in(cut, whole, batch_dim=0), placed.parts_in(whole, "text", batch_dim=0)]
    for trees in ((cut, WHOLE), (distribute_tensor(WHOLE[:5], mesh, [Shard(0)]),)):
        with pytest.raises(ValueError) as raised:  # noqa: PT011 - the words are compared
            placed.parts_in(*trees, batch_dim=0)
        said.append(str(raised.value))
    return said


def test_plain_tensors_beside_samples_that_are_cut_and_unequal_parts_are_refused():
    for said in run_on_ranks(_cut_into, ranks=2).values:
        assert said == [
            2,
            1,
            "the samples of a batch are cut over 2 ranks, but not all of its tensors are DTensors",
            "5 samples cannot be cut over 2 ranks into equal parts",
        ]


def _given():
    """What `placed_batch` gives: both forms of a batch, in the order in which the reference splits it."""
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicas", "parts"))
    micro = tuple(Microbatch(args=(one,), kwargs={}, target=one + 100) for one in WHOLE.split(4))
    batch = Batch(
        args=(WHOLE,),
        kwargs={},
        loss_kwargs={},
        target=WHOLE + 100,
        batch_dim=0,
        num_microbatches=2,
        microbatches=micro,
    )
    found = {}
    for target in ("alike", "whole"):
        how = TensorParallel(others=((1,),), batch="samples", target=target)
        given = placed_batch(batch, how, mesh)
        split = [_split(one, parts=2) for one in (given.args[0], given.target)]
        for k, part in enumerate(given.microbatches):
            for one, other in zip((part.args[0], part.target), (split[0][k], split[1][k]), strict=True):
                assert isinstance(one, DTensor)
                assert one.placements == other.placements
                assert torch.equal(one.to_local(), other.to_local())
        found[target] = [[part.target.full_tensor().tolist() for part in given.microbatches]]
        found[target] += [given.target.placements == (Replicate(),), given.args[0].to_local().tolist()]
    return found


def test_a_batch_is_given_so_that_splitting_it_where_it_lies_gives_its_microbatches():
    for rank, found in enumerate(run_on_ranks(_given, ranks=2).values):
        own = [row for k in range(2) for row in WHOLE[4 * k + 2 * rank : 4 * k + 2 * rank + 2].tolist()]
        for target in ("alike", "whole"):
            assert found[target] == [[(one + 100).tolist() for one in WHOLE.split(4)], target == "whole", own]
