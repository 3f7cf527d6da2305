"""What a rank reduces is known by the group: the given one of a stage, or one of the engine's own."""

from __future__ import annotations

from pipeconform import run_on_ranks


def reduce_everywhere() -> list[tuple[int, int, bool]]:
    """Of every reduction the stage, the number of values, and whether the group was another one of the same ranks."""
    import torch
    import torch.distributed as dist

    from pipeconform.observe.reductions import reduction_recorder

    given = {s: dist.new_group([0, 1]) for s in (3, 1)}
    own, alone = dist.new_group([0, 1]), [dist.new_group([rank]) for rank in (0, 1)]
    with reduction_recorder(("reductions",), given) as recorder:
        for number, group in enumerate((given[1], given[3], own, alone[dist.get_rank()], None), start=2):
            dist.all_reduce(torch.ones(number), group=group)
        dist.all_reduce(torch.ones(9, dtype=torch.int64), group=own)
        assert recorder is not None
        return [(one.stage, one.elements, one.alike) for one in recorder.take()]


def test_a_group_of_the_same_ranks_is_taken_for_that_of_the_rank_s_first_stage():
    found = run_on_ranks(reduce_everywhere, ranks=2).values

    assert found == ([(1, 2, False), (3, 3, False), (1, 4, True), (-1, 5, False), (1, 6, True)],) * 2


def test_nothing_is_recorded_where_nobody_asked():
    from pipeconform.observe.reductions import reduction_recorder

    with reduction_recorder(("events",), {}) as recorder:
        assert recorder is None
