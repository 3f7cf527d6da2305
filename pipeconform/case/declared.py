"""What the user of a pipeline says about its stages before anything has run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipeconform.adapter import Declared, TensorSpec
from pipeconform.case import data
from pipeconform.case.case import Case, Eval, Train
from pipeconform.case.modules import build_stage

__all__ = ["declared_of"]


def declared_of(case: Case) -> Mapping[int, Declared]:
    """Per stage what it takes and gives for the first microbatch of the first run, with the case's own mistake."""
    index = next(i for i, step in enumerate(case.program) if isinstance(step, Train | Eval))
    micro = data.make_batch(case, index).microbatches[0]
    values: tuple[Any, ...] = micro.args
    found: dict[int, Declared] = {}
    with torch.random.fork_rng(devices=[]):
        for s in range(case.num_stages):
            output = build_stage(case, s)(*values, **micro.kwargs.get(s, {}))
            given = tuple(output) if isinstance(output, tuple | list) else (output,)
            found[s] = Declared(inputs=data.specs_of(case, values), outputs=data.specs_of(case, given))
            values = tuple(value.detach().requires_grad_(value.requires_grad) for value in given)
    one = case.world.misplan
    if one is not None and one.how in ("shape", "dtype"):
        taken = found[one.stage + 1]
        wrong = _changed(taken.inputs[0], one.how)
        found[one.stage + 1] = Declared(inputs=(wrong, *taken.inputs[1:]), outputs=taken.outputs)
    return found


def _changed(spec: TensorSpec, how: str) -> TensorSpec:
    shape, dtype = spec.shape, spec.dtype
    if how == "shape":
        shape = (*shape[:-1], shape[-1] + 1)
    else:
        dtype = torch.float32 if dtype == torch.float64 else torch.float64
    return TensorSpec(shape=shape, dtype=dtype, requires_grad=spec.requires_grad, batch_dim=spec.batch_dim)
