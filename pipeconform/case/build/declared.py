"""What the user of a pipeline declares about its stages before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch

from pipeconform.adapter import Declared, TensorSpec
from pipeconform.case.build import data
from pipeconform.case.case import Case

__all__ = ["declared_of", "declares"]


def declares(case: Case, *, position: int | None) -> bool:
    """Whether the user declares the boundaries of the stages on the pipeline rank at `position`."""
    one = case.world.misplan
    if one is None:
        return bool(case.world.declared)
    return one.how in ("shape", "dtype") or (one.how == "metadata" and one.rank != position)


def declared_of(case: Case) -> Mapping[int, Declared]:
    """The declared inputs and outputs by stage, for the first microbatch of the first run, with the case's mistake.

    Of examples, none says that it needs a gradient.
    """
    passed = data.passed_on(case, stages=case.num_stages)
    found = {s: Declared(inputs=taken, outputs=given) for s, (taken, given) in enumerate(passed)}
    if case.world.declared == "examples":
        found = {
            s: Declared(inputs=_examples(one.inputs), outputs=_examples(one.outputs))
            for s, one in found.items()
        }
    one = case.world.misplan
    if one is not None and one.how in ("shape", "dtype"):
        taken = found[one.stage + 1]
        wrong = _changed(taken.inputs[0], one.how)
        found[one.stage + 1] = Declared(inputs=(wrong, *taken.inputs[1:]), outputs=taken.outputs)
    return found


def _examples(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The same as of tensors that were made with `torch.empty`."""
    return tuple(dataclasses.replace(spec, requires_grad=False) for spec in specs)


def _changed(spec: TensorSpec, how: str) -> TensorSpec:
    shape, dtype = spec.shape, spec.dtype
    if how == "shape":
        shape = (*shape[:-1], shape[-1] + 1)
    else:
        dtype = torch.float32 if dtype == torch.float64 else torch.float64
    return TensorSpec(shape=shape, dtype=dtype, requires_grad=spec.requires_grad, batch_dim=spec.batch_dim)
