"""What the installed release of torch's pipelining offers, found out from its own names and signatures.

No version is compared: a nightly, a fork and a release are asked the same questions.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch.distributed import pipelining
from torch.distributed.pipelining import _utils, microbatch, schedules

from pipeconform.adapter import Capabilities, ErrorContract, Feature, Unsupported

__all__ = [
    "CLASSES",
    "CLASS_NAMES",
    "claims_here",
    "finish_step",
    "promises_here",
    "require_taken",
    "taken",
    "without_waits",
]

CLASS_NAMES: Mapping[str, str] = {
    "ForwardOnly": "_ScheduleForwardOnly",
    "GPipe": "ScheduleGPipe",
    "1F1B": "Schedule1F1B",
    "Interleaved1F1B": "ScheduleInterleaved1F1B",
    "LoopedBFS": "ScheduleLoopedBFS",
    "InterleavedZeroBubble": "ScheduleInterleavedZeroBubble",
    "ZBVZeroBubble": "ScheduleZBVZeroBubble",
    "DualPipeV": "ScheduleDualPipeV",
}
"""Torch's names of the schedules' classes."""

CLASSES: Mapping[str, Any] = {
    name: getattr(schedules, theirs) for name, theirs in CLASS_NAMES.items() if hasattr(schedules, theirs)
}
"""The schedules of this release."""

_RUNTIME: Any = getattr(schedules, "_PipelineScheduleRuntime", ())
"""The class that carries out a table that a user loads, and that schedules for several stages per rank derive from; of
no class if this release has none."""

_SETTINGS: Mapping[str, tuple[Feature, ...]] = {
    "args_chunk_spec": (Feature.BATCH_DIM,),
    "kwargs_chunk_spec": (Feature.SPLIT_DIMS,),
    "defer_pp_recv": (Feature.LATE_RECEIVES,),
    "output_merge_spec": (Feature.BATCH_DIM, Feature.MERGE_DIMS, Feature.CUSTOM_MERGES),
}
"""Parameters of a schedule that not every schedule has, and the features that they are for."""

_WANTS_A_MICROBATCH_PER_STAGE = "or equal to the number of stages"
"""Until 2.10, the base of all schedules with one stage per rank raised this; since then only 1F1B does."""

_REFUSES_FEW = any(
    isinstance(text, str) and _WANTS_A_MICROBATCH_PER_STAGE in text
    for text in schedules.PipelineScheduleSingle.__init__.__code__.co_consts
)


def claims_here(claims: Capabilities) -> Capabilities:
    """Leave out what this release lacks, and say so."""
    missing = [name for name in CLASS_NAMES if name not in CLASSES]
    lacking = [f"schedule {name}: there is no {CLASS_NAMES[name]}" for name in missing]
    features, tensor_parallel = claims.features, claims.tensor_parallel
    if "loss_kwargs" not in _parameters(schedules.PipelineScheduleMulti.step):
        features -= {Feature.LOSS_KWARGS}
        lacking.append("keyword arguments of the loss: step() takes no loss_kwargs")
    if "return_outputs" not in _parameters(schedules.PipelineScheduleSingle.step):
        features -= {Feature.OUTPUTS_ON_REQUEST}
        lacking.append("steps without outputs: step() takes no return_outputs")
    if "arg_mbs" not in _parameters(schedules.PipelineScheduleMulti.step):
        features -= {Feature.BATCH_SOURCES}
        lacking.append("batches that the caller has split: step() takes no arg_mbs")
    if not hasattr(microbatch, "_split_block_mask"):
        features -= {Feature.BLOCK_MASKS}
        lacking.append("block masks as keyword arguments: they are not split")
    if not any("defer_pp_recv" in _parameters(one.__init__) for one in CLASSES.values()):
        features -= {Feature.LATE_RECEIVES}
        lacking.append("receives that are posted late: no schedule takes defer_pp_recv")
    if not _RUNTIME:
        features -= {Feature.TABLES, Feature.WRITTEN_TABLES}
        lacking.append("orders of the user's own: there is no _PipelineScheduleRuntime")
    if "get_mesh" not in _parameters(pipelining.PipelineStage.__init__):
        tensor_parallel = None
        lacking.append("tensor parallelism: PipelineStage takes no get_mesh")
    found = [
        dataclasses.replace(claim, lacks=claim.lacks | _lacking(claim.name))
        for claim in claims.schedules
        if claim.name in CLASSES
    ]
    if _REFUSES_FEW:
        single = [
            one.name
            for one in found
            if issubclass(CLASSES[one.name], schedules.PipelineScheduleSingle)
            and not one.min_microbatches_per_stage
        ]
        found = [
            dataclasses.replace(one, min_microbatches_per_stage=1) if one.name in single else one
            for one in found
        ]
        lacking.append(f"fewer microbatches than stages: refused under {', '.join(single)}")
    return dataclasses.replace(
        claims,
        schedules=tuple(found),
        features=features,
        tensor_parallel=tensor_parallel,
        elsewhere=tuple(f"{text} in torch {torch.__version__}" for text in lacking),
    )


def _lacking(schedule: str) -> frozenset[Feature]:
    """The features whose parameter a schedule does not have: torch documents parameters schedule by schedule."""
    known = _parameters(CLASSES[schedule].__init__)
    lacking = {
        feature for setting, features in _SETTINGS.items() if setting not in known for feature in features
    }
    if not issubclass(CLASSES[schedule], _RUNTIME):
        lacking |= {Feature.TABLES, Feature.WRITTEN_TABLES}
    return frozenset(lacking)


def _parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's parameters; every rank process asks, so `inspect.signature` would take too long."""
    code = inspect.unwrap(function).__code__
    names: tuple[str, ...] = code.co_varnames
    return names[: code.co_argcount + code.co_kwonlyargcount]


def promises_here(promises: ErrorContract) -> ErrorContract:
    """The promises about errors, as far as this release has the exception that is promised."""
    return dataclasses.replace(
        promises,
        promises={
            kind: kept
            for kind, names in promises.promises.items()
            if (kept := tuple(name for name in names if hasattr(_utils, name) or hasattr(builtins, name)))
        },
    )


def require_taken(schedule_class: type[Any], settings: Collection[str]) -> None:
    """Refuse settings that a schedule does not take: not every schedule takes all of them.

    Raises:
        Unsupported: `schedule_class` has no parameter of one of these names.
    """
    lacking = sorted(set(settings).difference(_parameters(schedule_class.__init__))) if settings else ()
    if lacking:
        raise Unsupported(f"{schedule_class.__name__} takes no {', '.join(lacking)}")


def taken(function: Callable[..., None], *arguments: object) -> None:
    """Call with as many of the arguments as `function` takes: later releases take more."""
    function(*arguments[: len(inspect.signature(function).parameters)])


def finish_step(stage: Any, divisor: int) -> None:
    """Divide and synchronise a stage's gradients: a method of its own since 2.10, before that the division only."""
    if hasattr(stage, "perform_reduce_grad"):
        stage.perform_reduce_grad(divisor)
    else:
        stage.scale_grads(divisor)


def without_waits(actions: Iterable[Any]) -> list[Any]:
    """A rank's actions without waits for what the rank began itself, which some releases write as actions of their own.

    The schedule language has no word for them; when the operation begins is kept.
    """
    return [one for one in actions if one is None or not str(one.computation_type.value).startswith("WAIT_")]
