"""Checks what an adapter's pipeline returns against the contract before anything is recorded.

A wrong type is a fault of the adapter and is not judged: the message says which method returned what, and
what was expected there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from pipeconform.adapter import (
    Batch,
    Boundary,
    DeclaresTable,
    KnowsBoundaries,
    MeasuresGradients,
    Mode,
    OffersStages,
    Operation,
    Pipeline,
    SavesTraining,
    ScalesLosses,
    StageOperations,
    StepResult,
)
from pipeconform.errors import ContractError
from pipeconform.execute.signatures import require_call

__all__ = ["CheckedPipeline"]

_CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "owned": (),
        "run": ("mode", "batch"),
        "apply": ("operation",),
        "gradients": (),
        "state": (),
        "close": (),
    }
)
_METHODS = tuple(_CALLS)
_SAVING = ("save", "restore")
_OPERATIONS = (
    "receive_forward",
    "forward",
    "send_forward",
    "receive_backward",
    "backward",
    "backward_weight",
    "send_backward",
    "finish",
)
_ANSWERS = tuple(
    f"{name}()" for name in (*_METHODS, "boundaries", "gradient_norm", "loss_scale", "table", "open_stages")
)
_TENSOR = "a tensor"


class CheckedPipeline:
    """A pipeline that raises `ContractError` where the one it wraps breaks the contract.

    `parameters` gives the names that a stage's parameters had when it was built, or None if any may be right.
    """

    def __init__(self, pipeline: Pipeline, *, parameters: Callable[[int], Collection[str] | None]) -> None:
        lacking = _lacked(pipeline, _METHODS)
        if lacking:
            raise ContractError(
                f"build() returned {_shown(pipeline)}, which lacks {', '.join(lacking)}; "
                f"expected an object with the methods of pipeconform.adapter.Pipeline"
            )
        for name, arguments in _CALLS.items():
            require_call(getattr(pipeline, name), f"{type(pipeline).__name__}.{name}", arguments)
        self._pipeline, self._parameters = pipeline, parameters

    def owned(self) -> Mapping[int, nn.Module]:
        """The modules by stage index."""
        found = self._pipeline.owned()
        _require_stages("owned()", found)
        for stage, module in found.items():
            _require(isinstance(module, nn.Module), f"owned()[{stage}]", module, "a module")
        return found

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """One step; the fields of its result have the declared types."""
        result = self._pipeline.run(mode, batch)
        _require(isinstance(result, StepResult), "run()", result, "pipeconform.adapter.StepResult")
        for name, kind in (
            ("losses", torch.Tensor),
            ("input_gradients", torch.Tensor | None),
            ("microbatches", int),
        ):
            values = getattr(result, name)
            if values is None:
                continue
            where = f"StepResult.{name}"
            _require(_is_sequence(values), where, values, "a list or tuple")
            expected = "a number" if kind is int else _TENSOR
            for index, value in enumerate(values):
                _require(isinstance(value, kind), f"{where}[{index}]", value, expected)
        _require(isinstance(result.loss, torch.Tensor | None), "StepResult.loss", result.loss, _TENSOR)
        for where, loss in (("StepResult.loss", result.loss), *_numbered("StepResult.losses", result.losses)):
            _require(loss is None or loss.numel() == 1, where, loss, "one number")
        held = list(result.microbatches or ())
        _require(
            held == sorted(set(held)) and all(0 <= k < batch.num_microbatches for k in held),
            "StepResult.microbatches",
            str(held),
            f"ascending indices below {batch.num_microbatches}",
        )
        return result

    def apply(self, operation: Operation) -> None:
        """Carry out an operation; its return value is ignored."""
        self._pipeline.apply(operation)

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        """Per stage and name, a tensor or None."""
        found = self._pipeline.gradients()
        _require_named("gradients()", found, torch.Tensor | None, "a tensor or None")
        self._require_owned("gradients()", found)
        for stage, values in found.items():
            self._require_parameters(stage, values)
        return found

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        """Per stage and name, a tensor."""
        found = self._pipeline.state()
        _require_named("state()", found, torch.Tensor, _TENSOR)
        self._require_owned("state()", found)
        return found

    def _require_owned(self, what: str, found: Mapping[int, object]) -> None:
        """Refuse stages under numbers that this rank does not own: the right ones would seem to be missing."""
        owned = self._pipeline.owned()
        _require_stages("owned()", owned)
        if strange := sorted(found.keys() - owned.keys()):
            raise ContractError(
                f"{what} has stage {strange[0]}, which owned() does not have; expected {sorted(owned)} at most"
            )

    def _require_parameters(self, stage: int, values: Mapping[str, object]) -> None:
        """Refuse names that a wrapper has changed: the builder's would seem to have no gradient."""
        names = self._parameters(stage)
        if names is not None and (strange := sorted(values.keys() - names)):
            expected = f"names such as {min(names)!r}" if names else "none"
            raise ContractError(
                f"gradients()[{stage}] has {strange[0]!r}, which is no parameter of the stage as it was built; "
                f"expected {expected}"
            )

    def table(self) -> str | None:
        """Text or None; called only if the adapter claims `Feature.DECLARED_TABLE`."""
        pipeline: object = self._pipeline
        if not isinstance(pipeline, DeclaresTable):
            raise _lacking(pipeline, "table()", "Feature.DECLARED_TABLE")
        found = pipeline.table()
        _require(isinstance(found, str | None), "table()", found, "CSV text or None")
        return found

    def open_stages(self, batch: Batch) -> Mapping[int, StageOperations]:
        """The operations of each owned stage; called only if the adapter claims `Feature.STAGE_OPERATIONS`."""
        pipeline: object = self._pipeline
        if not isinstance(pipeline, OffersStages):
            raise _lacking(pipeline, "open_stages()", "Feature.STAGE_OPERATIONS")
        found = pipeline.open_stages(batch)
        _require_stages("open_stages()", found)
        for stage, operations in found.items():
            lacking = _lacked(operations, _OPERATIONS)
            what = f"an object with {', '.join(lacking)}"
            _require(not lacking, f"open_stages()[{stage}]", operations, what)
        return found

    def boundaries(self) -> Sequence[Boundary]:
        """A sequence of boundaries; called only if the adapter claims `TracingClaim.knows_boundaries`."""
        pipeline: object = self._pipeline
        if not isinstance(pipeline, KnowsBoundaries):
            raise _lacking(pipeline, "boundaries()", "TracingClaim.knows_boundaries")
        found = pipeline.boundaries()
        _require(_is_sequence(found), "boundaries()", found, "a list or tuple")
        for index, value in enumerate(found):
            what = f"boundaries()[{index}]"
            _require(isinstance(value, Boundary), what, value, "pipeconform.adapter.Boundary")
        return found

    def gradient_norm(self) -> torch.Tensor | None:
        """A 0-d tensor or None; called only if the adapter claims `Feature.GRADIENT_NORM`."""
        pipeline: object = self._pipeline
        if not isinstance(pipeline, MeasuresGradients):
            raise _lacking(pipeline, "gradient_norm()", "Feature.GRADIENT_NORM")
        found = pipeline.gradient_norm()
        _require(isinstance(found, torch.Tensor | None), "gradient_norm()", found, "a tensor or None")
        _require(found is None or found.numel() == 1, "gradient_norm()", found, "one number")
        return found

    def loss_scale(self) -> float | None:
        """A number or None; called only if the plan scales losses."""
        pipeline: object = self._pipeline
        if not isinstance(pipeline, ScalesLosses):
            raise _lacking(pipeline, "loss_scale()", "Feature.LOSS_SCALING or SCALED_AUTOCAST")
        found = pipeline.loss_scale()
        _require(isinstance(found, int | float | None), "loss_scale()", found, "a number or None")
        return None if found is None else float(found)

    def save(self, folder: Path) -> None:
        """Write what training needs to go on; called only if the adapter claims `Feature.SAVING`."""
        self._saving().save(folder)

    def restore(self, folder: Path) -> None:
        """Take over what another pipeline saved; called only if the adapter claims `Feature.SAVING`."""
        self._saving().restore(folder)

    def _saving(self) -> SavesTraining:
        pipeline: object = self._pipeline
        if not isinstance(pipeline, SavesTraining):
            raise _lacking(pipeline, " and ".join(_lacked(pipeline, _SAVING)), "Feature.SAVING")
        for name in _SAVING:
            require_call(getattr(pipeline, name), f"{type(pipeline).__name__}.{name}", ("folder",))
        return pipeline

    def become(self, other: CheckedPipeline) -> None:
        """Stand for the pipeline that `other` stands for, from now on."""
        self._pipeline, self._parameters = other._pipeline, other._parameters

    def close(self) -> None:
        """Close the pipeline."""
        self._pipeline.close()


def _lacked(owner: object, methods: Sequence[str]) -> list[str]:
    """Those of the methods that an object does not have, as ``name()``."""
    return [f"{name}()" for name in methods if not callable(getattr(owner, name, None))]


def _lacking(pipeline: object, method: str, claim: str) -> ContractError:
    return ContractError(f"build() returned {_shown(pipeline)}, which lacks {method}, but {claim} is claimed")


def _numbered(where: str, values: Sequence[torch.Tensor] | None) -> list[tuple[str, torch.Tensor]]:
    return [(f"{where}[{index}]", value) for index, value in enumerate(values or ())]


def _require_named(what: str, found: object, kind: Any, expected: str) -> None:
    _require_stages(what, found)
    for stage, values in found.items():  # type: ignore[attr-defined]  # checked the line before
        inside = f"{what}[{stage}]"
        _require(isinstance(values, Mapping), inside, values, "a mapping from parameter names")
        for name, value in values.items():
            _require(isinstance(name, str), f"a key of {inside}", name, "a name")
            _require(isinstance(value, kind), f"{inside}[{name!r}]", value, expected)


def _require_stages(what: str, found: object) -> None:
    _require(isinstance(found, Mapping), what, found, "a mapping from stage indices")
    for key in found:  # type: ignore[attr-defined]  # a mapping, as of the line before
        _require(isinstance(key, int), f"a key of {what}", key, "a stage index")


def _require(holds: bool, what: str, value: object, expected: str) -> None:
    if not holds:
        verb = "returned" if what in _ANSWERS else "is"
        raise ContractError(f"{what} {verb} {_shown(value)}; expected {expected}")


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _shown(value: object) -> str:
    """A wrong value, as its type and, if it is short, its text."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{kind} {value!r:.40}" if isinstance(value, bool | int | float | str) else f"a {kind}"
