"""A case: everything one execution depends on, as immutable data with a JSON form and a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock, Block
from pipeconform.case.disorder import Disorder, has_subject
from pipeconform.case.misplans import impossible_misplan, num_surplus
from pipeconform.case.mistakes import Mistake, impossible_mistake
from pipeconform.case.perturbations import impossible
from pipeconform.case.strict import Strict
from pipeconform.case.world import World as World  # noqa: PLC0414 - others import it from here
from pipeconform.case.world import impossible_world
from pipeconform.errors import BadCaseError

CASE_FORMAT = 1

Carried = Literal["positions", "mask", "scale", "stream"]
PassageKind = Literal[
    "stream", "scalar", "flat", "single", "deep", "empty", "float8", "summed", "turned", "bypass", "learned"
]
FloatType = Literal["float64", "float32", "bfloat16", "float16"]


class Stage(Strict, frozen=True, kw_only=True):
    """One stage: its blocks in order; a frozen stage has no trainable parameter."""

    blocks: tuple[AnyBlock, ...]
    frozen: bool = False


MergedKind = Literal["turned", "whole", "total"]
KwargKind = Literal["tensor", "number", "objects", "turned", "whole", "listed"]


class Kwarg(Strict, frozen=True, kw_only=True):
    """A keyword argument of one stage: a tensor split with the batch, or what every microbatch is given whole.

    That is a number, or a dict of objects: a number, a text, None, and a list with a name for every sample. Three
    kinds come with a rule of their own: ``turned`` ``[2, B]`` is split in dimension 1, ``whole`` ``[B, W]`` is not
    split although it looks like it, and ``listed`` is a list of B numbers, which a function splits.
    """

    stage: int
    kind: KwargKind = "tensor"


class Passage(Strict, frozen=True, kw_only=True):
    """A tensor that stage `source` makes from its main stream and hands on, stage by stage, to stage `last`.

    The stages between pass it on as it is; those in `users` use it, all others ignore it. Shapes, for a main
    stream ``[B, S, W]``: ``stream``, ``summed``, ``turned`` and ``bypass`` like it; ``scalar`` 0-d; ``flat``
    ``[B·S]``; ``single`` ``[B, S, 1, 1]``; ``deep`` ``[B, 1, S, 1, W]``; ``empty`` ``[B, S, 0]``; ``float8``
    like it, in float8_e4m3fn and without a gradient. A ``summed`` one gets a gradient of stride 0, a ``turned``
    one a transposed gradient; a ``bypass`` takes the place of its user's main stream, which is then ignored.
    A ``learned`` one is made of a parameter of its source, whatever the stage's inputs are.
    """

    kind: PassageKind
    source: int
    last: int
    users: tuple[int, ...] = ()


class Split(Strict, frozen=True, kw_only=True):
    """The model is given whole, to a front end that splits it into stages; see `pipeconform.case.build.whole`."""

    by: Literal["annotations", "policy", "points"] = "annotations"
    inside: bool = False
    """Annotations stand at the ends of the submodules that compute the stages, not between their calls."""
    after: bool = False
    """Points stand after a stage's predecessor, not before the stage."""
    reused: bool = False
    """Every stage calls its first block twice."""
    skip: bool = False
    """The last stage adds what the first stage gave."""
    tied: bool = False
    """The first and the last stage apply one and the same linear map."""
    wrong: Literal["", "unknown", "uncalled", "empty", "branch"] = ""
    """The last point names no submodule, one that is never called, or the model's first; or values decide."""
    longer: bool = False
    """The last run's sequences are longer by one than those before."""
    shorter_example: bool = False
    """Those of the example that is traced are shorter by one than those of every run."""


class Model(Strict, frozen=True, kw_only=True):
    """The model: a chain of stages over a main stream and the tensors carried beside it.

    The main stream has shape ``[B, width]``, or ``[B, sequence, width]`` when `sequence` is not zero
    (``[sequence, B, width]`` with ``batch_dim=1``). Carried tensors have that shape without the width,
    except ``stream``, which has all of it. They enter as further inputs of the first stage:
    ``positions`` int64, ``mask`` bool, ``scale`` floating without gradient, ``stream`` floating with one.
    """

    width: int
    stages: tuple[Stage, ...]
    sequence: int = 0
    batch_dim: Literal[0, 1] = 0
    dtype: FloatType = "float64"
    tokens: bool = False
    classes: int = 0
    carried: tuple[Carried, ...] = ()
    passages: tuple[Passage, ...] = ()
    """Further boundary tensors, behind the carried ones in the container."""
    container: Literal["tensor", "tuple", "list"] = "tensor"
    output: Literal["tensor", "tuple1", "tuple", "dict"] = "tensor"
    merged: tuple[MergedKind, ...] = ()
    """Further outputs, each merged in a way of its own; see `pipeconform.case.build.merges`."""
    kwargs: tuple[Kwarg, ...] = ()
    input_requires_grad: bool = False
    tied: tuple[int, ...] = ()
    """Stages that hold and use one and the same square map; none, or two and more, ascending."""
    split: Split | None = None
    view_outputs: bool = False
    """Stages hand over what their last block returns, which may be a view; otherwise a tensor of its own."""


class LossSpec(Strict, frozen=True, kw_only=True):
    """The loss of one microbatch.

    `ignore` makes cross-entropy skip a number of targets that differs between microbatches; `scaled`
    passes a number to the loss function as a keyword argument.
    """

    kind: Literal["mse", "cross_entropy"] = "mse"
    reduction: Literal["mean", "sum"] = "mean"
    ignore: bool = False
    scaled: bool = False


class ByHand(Strict, frozen=True, kw_only=True):
    """A training step that is driven by the stages' own operations instead of the schedule.

    All forwards run first, stage by stage; then all backwards, in input and weight parts. With `mixed`, every
    second microbatch's backward runs as a whole, with `whole` all of them; with `late`, weight parts wait for all of
    a rank's input parts. A `mistake` is made once, at a stage and microbatch: its weight part before its input part,
    once more after itself, or of a microbatch that does not exist; or, in a step of whole backwards, one of
    `pipeconform.case.disorder`.
    """

    mixed: bool = False
    late: bool = False
    whole: bool = False
    mistake: Literal["", "weight_first", "weight_twice", "weight_unknown"] | Disorder = ""
    stage: int = 0
    microbatch: int = 0


class Train(Strict, frozen=True, kw_only=True, tag="train", tag_field="step"):
    """Forward and backward over one batch; with `autocast`, under automatic mixed precision (bfloat16)."""

    batch_size: int
    num_microbatches: int
    autocast: bool = False
    by_hand: ByHand | None = None
    mistake: Mistake | None = None


class Eval(Strict, frozen=True, kw_only=True, tag="eval", tag_field="step"):
    """Forward only, in evaluation mode; the caller may have switched gradients off already (`guard`)."""

    batch_size: int
    num_microbatches: int
    autocast: bool = False
    guard: Literal["", "no_grad", "inference_mode"] = ""


class Zero(Strict, frozen=True, kw_only=True, tag="zero_grad", tag_field="step"):
    """Clear all gradients."""

    set_to_none: bool = True


class Optimize(Strict, frozen=True, kw_only=True, tag="optimizer_step", tag_field="step"):
    """One optimizer step."""


class Load(Strict, frozen=True, kw_only=True, tag="load_state", tag_field="step"):
    """Load parameters and buffers, other ones than those that are there."""


class Sgd(Strict, frozen=True, kw_only=True, tag="sgd", tag_field="optimizer"):
    """Stochastic gradient descent."""

    lr: float
    momentum: float = 0.0


class Adam(Strict, frozen=True, kw_only=True, tag="adam", tag_field="optimizer"):
    """Adam with torch's default betas and epsilon."""

    lr: float


Step = Train | Eval | Zero | Optimize | Load


class Case(Strict, frozen=True, kw_only=True, omit_defaults=False):
    """One execution: model, schedule, world, loss, program and the seed of all values.

    p is ``len(world.pipeline_ranks)``; v is `stages_per_rank`; the model has p·v stages, and those that a wrong plan
    has besides.
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

    def blocks(self) -> Iterator[AnyBlock]:
        """Every block of every stage, in order."""
        for stage in self.model.stages:
            yield from stage.blocks

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
        """What is done wrong on purpose, step by step."""
        return tuple(step.mistake for step in self.trains if step.mistake is not None)

    @property
    def is_mistaken(self) -> bool:
        """Whether anything is done wrong on purpose: an error is then what is due."""
        return bool(self.mistakes) or self.world.misplan is not None

    @property
    def without_mistakes(self) -> Case:
        """The same case with nothing done wrong."""
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

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that identify the case; equal for equal cases on every machine."""
        return hashlib.sha256(encode_case(self)).hexdigest()[:12]


def _contradictions(case: Case) -> Iterator[str]:
    """Yield what makes `case` impossible, naming the field, its value and what was expected."""
    model, world = case.model, case.world
    p, v, stages = case.num_ranks, case.stages_per_rank, case.num_stages
    if case.format != CASE_FORMAT:
        yield f"case format {case.format} is not supported: this version reads format {CASE_FORMAT}"
    if p < 1 or v < 1:
        yield f"a pipeline needs at least one rank and one stage per rank, not p = {p}, v = {v}"
    planned = p * v + num_surplus(world.misplan, num_ranks=p)
    if world.misplan is not None:
        yield from impossible_misplan(world.misplan, num_ranks=p, num_stages=stages)
    if stages != planned:
        yield (
            f"model.stages has {stages} stages, but p = {p} ranks with v = {v} stages each need {planned}: "
            f"change world.pipeline_ranks, stages_per_rank or the stages"
        )
    yield from impossible_world(world, model)
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
            if step.by_hand.stage >= stages or step.by_hand.microbatch >= step.num_microbatches:
                yield f"program[{index}].by_hand makes a mistake at a stage or microbatch that there is not"
            if step.by_hand.mistake and step.by_hand.mixed:
                yield f"program[{index}].by_hand cannot be mixed and make a mistake: there may be no weight part"
            if step.by_hand.mistake.startswith("weight") and step.by_hand.whole:
                yield f"program[{index}].by_hand has whole backwards: there is no weight part to be mistaken about"
            # where the schedule lays the stages out is the claim's business
            if not has_subject(step.by_hand.mistake, stage=step.by_hand.stage, placed=range(stages)):
                yield f"program[{index}].by_hand.mistake {step.by_hand.mistake!r} needs a neighbour of that stage"
        if isinstance(step, Train) and step.mistake is not None:
            name, m = f"program[{index}].mistake", step.num_microbatches
            yield from impossible_mistake(step.mistake, name=name, num_stages=stages, num_microbatches=m)
            if step.mistake.how == "ragged" and not model.carried:
                yield f"{name}.how 'ragged' is about a second argument: it needs model.carried"
            if step.mistake.where == "reduction" and not (world.replicas and world.replicas.hook):
                yield f"{name} is made by a communication hook: it needs world.replicas.hook"
        if isinstance(step, Optimize) and case.optimizer is None:
            yield f"program[{index}] is an optimizer step, but the case has no optimizer"
    if model.width < 1 or model.sequence < 0:
        yield f"model.width {model.width} must be at least 1 and model.sequence {model.sequence} at least 0"
    if model.merged and (model.output != "tensor" or model.batch_dim or model.split is not None):
        yield "model.merged goes with model.output 'tensor' and batch_dim 0, and not with model.split"
    if model.batch_dim == 1 and not model.sequence:
        yield "model.batch_dim 1 needs a sequence: the main stream is [sequence, B, width]"
    if any(not 0 <= kwarg.stage < stages for kwarg in model.kwargs):
        yield f"model.kwargs names a stage outside 0…{stages - 1}"
    if model.batch_dim and any(kwarg.kind == "turned" for kwarg in model.kwargs):
        yield "model.batch_dim 1 is where a turned keyword argument has the batch anyway"
    if case.has(blocks.Attention) and not model.sequence:
        yield "an attention block needs model.sequence of at least 1"
    if (model.carried or model.passages) and model.container == "tensor":
        yield "carried tensors and passages need a container: model.container must be 'tuple' or 'list'"
    for one in model.passages:
        if not 0 <= one.source < one.last < stages:
            yield f"a passage from stage {one.source} to stage {one.last} does not fit {stages} stages"
        if not all(one.source < s <= one.last for s in one.users):
            yield f"stages {list(one.users)} cannot use what passes from stage {one.source} to stage {one.last}"
    if model.tied and (len(model.tied) < 2 or list(model.tied) != sorted({*model.tied} & {*range(stages)})):
        yield f"model.tied {list(model.tied)} must be two or more ascending stages of 0…{stages - 1}"
    if model.tied and (model.split is not None or model.classes):
        yield "model.tied goes with neither model.split nor model.classes"
    if model.tokens != isinstance(next(case.blocks(), None), blocks.Embedding):
        yield "a token model begins with an embedding block, and only a token model does"
    if bool(model.classes) != (case.loss.kind == "cross_entropy"):
        yield (
            f"model.classes is {model.classes}, but the loss is {case.loss.kind}: "
            f"cross_entropy needs classes, mse none"
        )
    split = model.split
    if split is not None and (model.carried or model.container != "tensor" or model.tokens or model.classes):
        yield "a model that is split hands over one floating tensor: no carried tensors, tokens or classes"
    if split is not None and split.wrong in ("unknown", "uncalled", "empty") and split.by != "points":
        yield f"model.split.wrong {split.wrong!r} is about points, but the model is split by {split.by}"
    if split is not None and stages < (3 if split.skip else 2 if split.tied else 1):
        yield f"{stages} stages are too few for model.split: a skip connection needs 3, a tied map 2"
    if split is not None and world.perturbations:
        yield "the stages of a front end cannot be perturbed: model.split and world.perturbations exclude each other"
    if split is not None and split.inside and split.by != "annotations":
        yield f"model.split.inside is about annotations, but the model is split by {split.by}"
    if split is not None and (split.longer or split.shorter_example) and not model.sequence:
        yield "model.split.longer and model.split.shorter_example need a sequence"
    if model.tokens and model.input_requires_grad:
        yield "token inputs cannot require a gradient"


def encode_case(case: Case) -> bytes:
    """The canonical JSON form, one line."""
    return msgspec.json.encode(case)


def format_case(case: Case) -> str:
    """The JSON form for reading."""
    return msgspec.json.format(encode_case(case), indent=2).decode()


class _Versioned(msgspec.Struct, frozen=True):
    """What every format of a case may have."""

    format: int | str | None = CASE_FORMAT


def decode_case(data: bytes | str, *, source: str = "case") -> Case:
    """Read a case from JSON.

    Raises:
        BadCaseError: the text is not JSON, not a case, of another format or impossible; the message
            names `source` and the path of the field.
    """
    from pipeconform.case.limits import bounded
    from pipeconform.reading import decoded_json

    version = decoded_json(data, _Versioned, source=source, what="a case", error=BadCaseError).format
    if version != CASE_FORMAT:
        raise BadCaseError(
            f"{source}: case format {version!r} is not supported: this version reads {CASE_FORMAT}"
        )
    found = decoded_json(data, Case, source=source, what="a case", error=BadCaseError)
    return bounded(found, source=source)
