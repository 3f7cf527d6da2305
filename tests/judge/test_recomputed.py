"""A stage that was computed no more often than there are microbatches was not computed again."""

from __future__ import annotations

import dataclasses

from pipeconform.bounds.gauge import Gauge
from pipeconform.case.case import Train, World
from pipeconform.judge.recomputed import stages_are_computed_again
from tests.judge.grid import evidence_of
from tests.judge.honest import changed, honest, plain_case


def test_of_several_microbatches_one_is_computed_again_at_least():
    made = evidence_of("recomputed")

    assert list(stages_are_computed_again(dataclasses.replace(made, gauge=Gauge()))) == []
    for rank in (0, 1):
        num = made.shown[rank].steps[0].begun[rank]
        few = changed(made, rank=rank, step=0, begun={rank: num - 1})
        none = changed(made, rank=rank, step=0, begun={})

        (found,) = stages_are_computed_again(few)
        assert (found.kind, found.step, found.rank, found.stage) == ("not computed again", 0, rank, rank)
        assert found.message == (
            f"stage {rank} was computed {num - 1} times for {num - 1} microbatches: its activations were kept"
        )
        assert [one.stage for one in stages_are_computed_again(none)] == [rank]


def test_of_a_single_microbatch_nothing_is_asked():
    world = World(size=2, pipeline_ranks=(0, 1), recompute=True)
    made = honest(plain_case(Train(batch_size=2, num_microbatches=1), world=world))

    for rank in (0, 1):
        assert list(stages_are_computed_again(changed(made, rank=rank, step=0, begun={rank: 1}))) == []
