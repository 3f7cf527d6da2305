"""A case: everything on which one execution depends, as immutable data with a JSON form and a digest.

This module also exports the parts of a case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import structs

from pipeconform.case import blocks, limits
from pipeconform.case.blocks import AnyBlock, Block, Rescaled
from pipeconform.case.by_hand import ByHand, impossible_by_hand
from pipeconform.case.freezing import impossible_freezes
from pipeconform.case.misplans import impossible_misplan, num_surplus
from pipeconform.case.mistakes import Mistake, impossible_mistake
from pipeconform.case.model import (
    Carried,
    FloatType,
    Kwarg,
    KwargKind,
    MergedKind,
    Model,
    Passage,
    PassageKind,
    Split,
    Stage,
    impossible_model,
)
from pipeconform.case.perturbations import impossible
from pipeconform.case.program import (
    Adam,
    Clip,
    Eval,
    Freeze,
    Load,
    LossSpec,
    Optimize,
    Restart,
    Scaling,
    Sgd,
    Step,
    Train,
    Zero,
)
from pipeconform.case.strict import Strict
from pipeconform.case.tensor_parallel import impossible_samples
from pipeconform.case.world import World, impossible_world
from pipeconform.errors import BadCaseError
from pipeconform.reading import decoded_json

__all__ = [
    "CASE_FORMAT",
    "Adam",
    "ByHand",
    "Carried",
    "Case",
    "Clip",
    "Eval",
    "FloatType",
    "Freeze",
    "Kwarg",
    "KwargKind",
    "Load",
    "LossSpec",
    "MergedKind",
    "Model",
    "Optimize",
    "Passage",
    "PassageKind",
    "Restart",
    "Scaling",
    "Sgd",
    "Split",
    "Stage",
    "Step",
    "Train",
    "World",
    "Zero",
    "decode_case",
    "encode_case",
    "format_case",
]

CASE_FORMAT = 1


class Case(Strict, frozen=True, kw_only=True, omit_defaults=False):
    """One execution: model, schedule, world, loss, program and the seed of all values.

    p is ``len(world.pipeline_ranks)``; v is `stages_per_rank`; the model has p·v stages, plus any surplus stages of a
    wrong plan.
    """

    model: Model
    schedule: str
    world: World
    program: tuple[Step, ...]
    loss: LossSpec = LossSpec()
    optimizer: Sgd | Adam | None = None
    stages_per_rank: int = 1
    seed: int = 0
    format: int = CASE_FORMAT

    def __post_init__(self) -> None:
        """Refuse impossible combinations; a `Case` that exists can be run."""
        for reason in _contradictions(self):
            raise BadCaseError(reason)

    @property
    def num_ranks(self) -> int:
        """The number of pipeline ranks, p."""
        return len(self.world.pipeline_ranks)

    @property
    def num_stages(self) -> int:
        """The number of stages, p·v."""
        return len(self.model.stages)

    @property
    def runs(self) -> tuple[Train | Eval, ...]:
        """The steps of the program that run the pipeline."""
        return tuple(step for step in self.program if isinstance(step, Train | Eval))

    @property
    def trains(self) -> tuple[Train, ...]:
        """The training steps of the program."""
        return tuple(step for step in self.program if isinstance(step, Train))

    @property
    def autocast(self) -> Literal["bfloat16", "float16"] | None:
        """The dtype of autocast in all steps that run the pipeline; None if they run without."""
        if not any(run.autocast for run in self.runs):
            return None
        scaled = isinstance(self.optimizer, Sgd) and self.optimizer.scaling is not None
        return "float16" if scaled else "bfloat16"

    def blocks(self) -> Iterator[AnyBlock]:
        """Every block of every stage, in order."""
        return self.model.blocks()

    def has(self, *kinds: type[Block]) -> bool:
        """Whether any block is of one of these kinds."""
        return any(isinstance(block, kinds) for block in self.blocks())

    @property
    def draws_masks(self) -> bool:
        """Whether any block draws dropout masks."""
        return any(
            isinstance(block, blocks.Dropout) or (isinstance(block, blocks.Checkpointed) and block.dropout)
            for block in self.blocks()
        )

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """The deliberate mistakes of the training steps, in order."""
        return tuple(step.mistake for step in self.trains if step.mistake is not None)

    @property
    def is_mistaken(self) -> bool:
        """Whether the case does anything wrong on purpose, so that an error is expected."""
        return bool(self.mistakes) or self.world.misplan is not None

    @property
    def without_mistakes(self) -> Case:
        """The same case without its deliberate mistakes."""
        program = tuple(
            structs.replace(step, mistake=None) if isinstance(step, Train) else step for step in self.program
        )
        if self.world.misplan is None:
            return structs.replace(self, program=program)
        return structs.replace(
            self,
            program=program,
            world=structs.replace(self.world, misplan=None),
            model=structs.replace(
                self.model, stages=self.model.stages[: self.num_ranks * self.stages_per_rank]
            ),
        )

    def too_large(self) -> Iterator[str]:
        """Yield what is too large to run in reasonable time; drawn cases never are."""
        return limits.too_large(
            self.model, self.world, self.program, stages_per_rank=self.stages_per_rank, seed=self.seed
        )

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that identify the case; equal for equal cases on every machine."""
        return hashlib.sha256(encode_case(self)).hexdigest()[:12]


def _contradictions(case: Case) -> Iterator[str]:
    """Yield the reasons why `case` is impossible, each with the field, its value and the expectation."""
    model, world = case.model, case.world
    p, v, stages = case.num_ranks, case.stages_per_rank, case.num_stages
    if case.format != CASE_FORMAT:
        yield f"case format {case.format} is not supported: this version reads format {CASE_FORMAT}"
    if p < 1 or v < 1:
        yield f"a pipeline needs at least one rank and one stage per rank, not p = {p}, v = {v}"
    planned = p * v + num_surplus(world.misplan, num_ranks=p)
    if world.misplan is not None:
        yield from impossible_misplan(
            world.misplan,
            num_ranks=p,
            num_stages=stages,
            table_of=case.trains[0].num_microbatches if world.order is not None and case.trains else None,
        )
    if stages != planned:
        yield (
            f"model.stages has {stages} stages, but p = {p} ranks with v = {v} stages each need {planned}: "
            f"change world.pipeline_ranks, stages_per_rank or the stages"
        )
    yield from impossible_world(world, model)
    if world.tensor is not None:
        runs = [(run.batch_size, run.num_microbatches) for run in case.runs]
        yield from impossible_samples(world.tensor, runs, num=world.num_tensor_ranks)
    if world.declared:
        shapes = {(run.batch_size, run.num_microbatches) for run in case.runs}
        if len(shapes) > 1 or any(size % m for size, m in shapes):
            yield "world.declared says one shape for all microbatches: they must all have as many samples"
    if world.order is not None and len({step.num_microbatches for step in case.trains}) != 1:
        yield "world.order is the order of a training step: it needs training steps, all of one num_microbatches"
    yield from impossible(
        world.perturbations,
        num_ranks=p,
        num_stages=stages,
        runs=[run.num_microbatches for run in case.runs],
        num_replicas=world.num_replicas,
    )
    if not case.runs:
        yield "program has no train or eval step: nothing would be run"
    for index, step in enumerate(case.program):
        if isinstance(step, Train | Eval) and not 1 <= step.num_microbatches <= step.batch_size:
            yield (
                f"program[{index}] splits a batch of {step.batch_size} into {step.num_microbatches} microbatches: "
                f"every microbatch needs at least one sample"
            )
        if isinstance(step, Train) and step.by_hand is not None:
            name, m = f"program[{index}].by_hand", step.num_microbatches
            yield from impossible_by_hand(step.by_hand, name=name, num_stages=stages, num_microbatches=m)
        if isinstance(step, Train) and step.mistake is not None:
            name, m = f"program[{index}].mistake", step.num_microbatches
            yield from impossible_mistake(step.mistake, name=name, num_stages=stages, num_microbatches=m)
            if step.mistake.how == "ragged" and not model.carried:
                yield f"{name}.how 'ragged' changes a second argument: it needs model.carried"
            if step.mistake.where == "reduction" and not (world.replicas and world.replicas.hook):
                yield f"{name} is made by a communication hook: it needs world.replicas.hook"
            if step.mistake.where == "source" and not step.from_source:
                yield f"{name} ends a source: it needs program[{index}].from_source"
        if isinstance(step, Optimize) and case.optimizer is None:
            yield f"program[{index}] is an optimizer step, but the case has no optimizer"
    if any(isinstance(step, Freeze) for step in case.program):
        yield from _contradictory_freezes(case)
    if any(isinstance(step, Restart) for step in case.program):
        yield from _contradictory_restarts(case)
    if any(run.from_source for run in case.runs) and model.input_requires_grad:
        yield "inputs that come from a source have no gradients: model.input_requires_grad must be false"
    if len({run.autocast for run in case.runs}) > 1:
        yield "steps of one case all run under autocast, or none: engines may have it in their configuration"
    if world.is_mixed:
        if model.dtype != "float32" or case.autocast is not None:
            yield "world.replicas.mixed_precision computes in bfloat16: it needs model.dtype 'float32' and no autocast"
        if world.tensor is not None or model.split is not None:
            yield "world.replicas.mixed_precision cannot be combined with world.tensor or model.split"
    if any(step.from_source and step.by_hand is not None for step in case.trains):
        yield "a step by hand has its whole batch: it cannot be from_source"
    if isinstance(case.optimizer, Sgd):
        yield from _contradictory_updates(case, case.optimizer)
    yield from impossible_model(model)
    if model.is_exact:
        yield from _inexact(case)
    if bool(model.classes) != (case.loss.kind == "cross_entropy"):
        yield (
            f"model.classes is {model.classes}, but the loss is {case.loss.kind}: "
            f"cross_entropy needs classes, mse none"
        )
    loss = case.loss
    if loss.counted and (loss.kind, loss.reduction, loss.scaled) != ("cross_entropy", "sum", False):
        yield "loss.counted divides a sum: it needs loss.kind 'cross_entropy', loss.reduction 'sum' and no loss.scaled"
    if world.recompute and any(isinstance(block, Rescaled) for block in model.blocks()):
        yield "a rescaled block changes its input again where stages are computed twice: it cannot have world.recompute"
    if loss.in_place and loss.kind != "mse":
        yield "loss.in_place halves targets: it needs loss.kind 'mse'"
    if loss.counted and world.num_replicas > 1:
        yield "loss.counted counts the targets of one batch: it cannot be combined with world.replicas"
    if model.readout and world.is_parallel:
        yield "model.readout is a parameter of one module: it cannot be combined with world.replicas or world.tensor"
    if model.split is not None and world.perturbations:
        yield "the stages of a front end cannot be perturbed: use either model.split or world.perturbations"


def _inexact(case: Case) -> Iterator[str]:
    """What is done with an exact model that rounds."""
    if any(run.batch_size != run.num_microbatches for run in case.runs):
        yield "each microbatch of a model with gain blocks has one sample: sums over several would be rounded"
    if case.optimizer is not None or any(isinstance(step, Load) for step in case.program):
        yield "the factors of a model with gain blocks stay 1: it has no optimizer and loads nothing"


def _contradictory_updates(case: Case, optimizer: Sgd) -> Iterator[str]:
    """What an optimizer asks for that does not go together."""
    if optimizer.masters and case.model.dtype not in ("bfloat16", "float16"):
        yield f"optimizer.masters copies parameters of 16 bits: it needs another model.dtype than {case.model.dtype}"
    if optimizer.masters and case.world.tensor is not None:
        yield "optimizer.masters cannot be combined with world.tensor"
    if optimizer.scaling is not None and not optimizer.masters and case.autocast is None:
        yield "optimizer.scaling needs optimizer.masters or steps under autocast"


def _contradictory_freezes(case: Case) -> Iterator[str]:
    """What does not go together with steps that freeze stages."""
    beside = {
        "an optimizer": case.optimizer,
        "model.split": case.model.split,
        "model.tied": case.model.tied or None,
        "world.replicas": case.world.replicas,
        "world.tensor": case.world.tensor,
    }
    for part, value in beside.items():
        if value is not None:
            yield f"a step that freezes or unfreezes a stage cannot be combined with {part}"
    yield from impossible_freezes(case.model, case.program)


def _contradictory_restarts(case: Case) -> Iterator[str]:
    """What does not go together with pipelines that take each other's place."""
    beside = {
        "steps that freeze stages": any(isinstance(step, Freeze) for step in case.program),
        "deliberate mistakes": case.is_mistaken,
        "model.split": case.model.split,
        "world.replicas": case.world.replicas,
        "world.tensor": case.world.tensor,
    }
    if isinstance(case.program[0], Restart):
        yield "program[0] restarts a training of which nothing has run"
    for part, value in beside.items():
        if value:
            yield f"a step that restarts the training cannot be combined with {part}"


def encode_case(case: Case) -> bytes:
    """The canonical JSON form, on one line."""
    return msgspec.json.encode(case)


def format_case(case: Case) -> str:
    """The JSON form, indented for reading."""
    return msgspec.json.format(encode_case(case), indent=2).decode()


class _Versioned(msgspec.Struct, frozen=True):
    """The field that every format of a case may have."""

    format: int | str | None = CASE_FORMAT


def decode_case(data: bytes | str, *, source: str = "case") -> Case:
    """Read a case from JSON.

    Raises:
        BadCaseError: the text is not JSON, not a case, has another format or is impossible; the message names `source`
            and the path of the field.
    """
    version = decoded_json(data, _Versioned, source=source, what="a case", error=BadCaseError).format
    if version != CASE_FORMAT:
        raise BadCaseError(
            f"{source}: case format {version!r} is not supported: this version reads {CASE_FORMAT}"
        )
    found = decoded_json(data, Case, source=source, what="a case", error=BadCaseError)
    return limits.bounded(found, source=source)
