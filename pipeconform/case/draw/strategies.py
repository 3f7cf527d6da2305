"""Strategies: whole cases, with p, v and m inside, inside the limits an implementation claims.

Every choice is an index into a table of our own, smallest first: Hypothesis shrinks toward the
smallest case, and constants that it mines from loaded modules cannot change a corpus.

A *focus* names what a case is about; its strategy adds that and little else, so that a failing case
says what broke.
"""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st
from msgspec import structs

from pipeconform.adapter import ScheduleClaim
from pipeconform.case.case import Case, Eval, FloatType, LossSpec, Model, Stage, Step, Train
from pipeconform.case.draw.changes import focused
from pipeconform.case.draw.drawing import Draw, Drawing
from pipeconform.case.draw.mistakes import mistaken_program
from pipeconform.case.draw.programs import program_of
from pipeconform.case.draw.replicas import (
    optimizer_for,
    replica_delays,
    replicated_model,
    replicated_program,
    replicated_world,
)
from pipeconform.case.draw.sizes import reachable, some_m
from pipeconform.case.draw.subjects.delayed import disturbed
from pipeconform.case.draw.subjects.misplanned import misplanned
from pipeconform.case.draw.tensor_parallel import (
    cut_blocks,
    cut_program,
    cut_sequences,
    cut_widths,
    cut_world,
)
from pipeconform.case.draw.whole import as_whole
from pipeconform.case.focus import MISTAKEN, REPLICATED, TENSOR_PARALLEL, WHOLE, Focus, Limits, is_claimed

__all__ = ["ROWS", "Focus", "Limits", "cases", "is_claimed", "reachable"]

_SEEDS = tuple(range(64))
ROWS = {Focus.TRAFFIC: [1, 8, 8], Focus.REPLICA_NORMS: [2, 3, 4]}
"""Samples in a microbatch, where that is not as usual: a norm over few of them leaves nothing to differentiate."""


def cases(limits: Limits, schedule: ScheduleClaim, focus: Focus) -> st.SearchStrategy[Case]:
    """Cases of one focus under one schedule, inside `limits`.

    Raises:
        ValueError: the focus is not claimed; ask `is_claimed` first.
    """
    if not is_claimed(focus, schedule, limits.capabilities):
        raise ValueError(f"{focus} is not claimed under {schedule.name}")

    @st.composite
    def draw_case(draw: Draw[object]) -> Case:
        d = Drawing(draw, limits, schedule, focus)
        return as_whole(d, _case(d)) if focus in WHOLE else _case(d)

    return draw_case()


def _case(d: Drawing) -> Case:
    p, v, m = d.shape()
    focus, boundary = d.focus, d.limits.capabilities.boundary
    if (
        focus in (Focus.KWARGS, Focus.OBJECTS, Focus.RULES)
        and d.limits.capabilities.kwargs_scope == "rank"
        and v > 1
    ):
        v, m = 1, d.pick(some_m(d.claim, p, 1))
    sequence = d.pick([0, 2, 3]) if boundary.min_ndim <= 2 else d.pick([2, 3])
    if boundary.max_ndim < 3 or (focus is Focus.INPLACE and boundary.min_ndim <= 2):
        sequence = 0
    batch_dim: Literal[0, 1] = 0
    if focus is Focus.BATCH_DIM:
        sequence, batch_dim = d.pick([2, 3]), 1
    width = d.pick([1, 64, 64]) if focus is Focus.TRAFFIC else d.pick([1, 2, 3, 4, 4, 6, 8, 8])
    cut = cut_world(d, p) if focus in TENSOR_PARALLEL else None
    if cut is not None and cut.tensor is not None:
        sequence, width = d.pick(cut_sequences(d, cut.tensor)), d.pick(cut_widths(d, cut.tensor))
    if cut is not None and cut.tensor is not None and cut.tensor.maps:
        stages = [cut_blocks(d, cut.tensor, width) for _ in range(p * v)]
    else:
        stages = [d.blocks(sequence, width) for _ in range(p * v)]
    rows = d.pick(ROWS.get(focus, [1, 2, 2, 3]))
    batch_size = m * rows
    if focus is Focus.UNEVEN and m > 1:
        batch_size += d.pick(list(range(1, m)))
    dtype: FloatType = "float64" if "float64" in boundary.dtypes else "float32"
    if focus is Focus.DTYPE:
        dtype = d.pick([t for t in ("bfloat16", "float16") if t in boundary.dtypes])
    elif focus is Focus.AUTOCAST:
        dtype = "float32"
    elif "float32" in boundary.dtypes:
        dtype = d.pick([dtype, dtype, dtype, "float32"])
    model = Model(
        width=width,
        sequence=sequence,
        batch_dim=batch_dim,
        dtype=dtype,
        stages=tuple(Stage(blocks=chosen) for chosen in stages),
    )
    loss, optimizer = (
        LossSpec(reduction="mean" if "mean" in d.limits.capabilities.reductions else "sum"),
        None,
    )
    model, loss, optimizer = focused(d, model, loss)
    autocast = focus is Focus.AUTOCAST
    train = Train(batch_size=batch_size, num_microbatches=m, autocast=autocast)
    evaluate = Eval(batch_size=batch_size, num_microbatches=m, autocast=autocast)
    world = cut or (replicated_world(d, p) if focus in REPLICATED else d.world(p))
    if focus is Focus.DELAYED:
        found = disturbed(d, num_ranks=p, num_stages=p * v, num_microbatches=m)
        world = structs.replace(world, perturbations=found)
    if focus in (Focus.MISPLANNED, Focus.NEIGHBOURS):
        misplan, train, model = misplanned(d, train, model, num_ranks=p)
        world = structs.replace(world, misplan=misplan)
    program: tuple[Step, ...] = (train,)
    if focus in REPLICATED:
        model, world = replicated_model(d, model, world)
        if focus in MISTAKEN:
            program = mistaken_program(d, train, model)
        else:
            program = replicated_program(d, train, model, world, num_ranks=p, stages_per_rank=v)
        optimizer = optimizer_for(program)
        if focus is Focus.REPLICA_DELAYS:
            world = replica_delays(d, num_ranks=p, num_stages=p * v, world=world)
    elif focus in TENSOR_PARALLEL:
        program = cut_program(d, train)
        optimizer = optimizer_for(program)
    elif focus in MISTAKEN and world.misplan is None:
        program = mistaken_program(d, train, model)
    elif world.misplan is None:
        program = program_of(d, train, evaluate, num_ranks=p, num_stages=p * v)
    return Case(
        model=model,
        schedule=d.claim.name,
        stages_per_rank=v,
        world=world,
        program=program,
        loss=loss,
        optimizer=optimizer,
        seed=d.pick(_SEEDS),
    )
