"""The model of a case: stages made of blocks, and the tensors that pass between stages, as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pipeconform.case.blocks import AnyBlock, Attention, Decoder, Embedding, Gain, Keeping, Rescaled
from pipeconform.case.strict import Strict

__all__ = [
    "Carried",
    "FloatType",
    "Kwarg",
    "KwargKind",
    "MergedKind",
    "Model",
    "Passage",
    "PassageKind",
    "Split",
    "Stage",
    "impossible_model",
]

Carried = Literal["positions", "mask", "scale", "stream"]
PassageKind = Literal[
    "stream",
    "scalar",
    "flat",
    "single",
    "deep",
    "empty",
    "float8",
    "complex",
    "rotations",
    "summed",
    "turned",
    "bypass",
    "learned",
]
FloatType = Literal["float64", "float32", "bfloat16", "float16"]
MergedKind = Literal["turned", "whole", "parameter", "total"]
KwargKind = Literal[
    "tensor",
    "number",
    "objects",
    "turned",
    "rows",
    "whole",
    "listed",
    "positions",
    "mask",
    "block_mask",
    "window",
]


class Stage(Strict, frozen=True, kw_only=True):
    """One stage: its blocks in order. A frozen stage has no trainable parameters."""

    blocks: tuple[AnyBlock, ...]
    frozen: bool = False


class Kwarg(Strict, frozen=True, kw_only=True):
    """A keyword argument of one stage: a tensor split with the batch, or a value that every microbatch gets whole.

    Such a value is a number, or a dict of objects: a number, a text, None, and a list with a name for every sample.
    Four kinds have split rules of their own: ``turned`` ``[2, B]`` is split in dimension 1, ``whole`` ``[B, W]`` is
    not split despite its shape, and ``listed`` is a list of B numbers, which a function splits. ``rows`` stands beside
    ``turned`` in a stage and is split in dimension 0 by a rule that says so; then both are ``[B, B]``, so that each
    can be cut as the other should be, and their rules are given in the reverse order of their values.

    Four kinds are for the decoder layers of their stage. Two are tensors that are split with the batch: ``positions``
    are the int64 positions of tokens in their documents, several of which follow each other in a sample; tokens attend
    to those of their document only. ``mask`` is bool; nothing but a token itself attends to one where it is False. Two
    are block masks of flex attention: ``block_mask`` is of documents, another in every sample; ``window`` is of a
    single sample, and every microbatch gets it whole.
    """

    stage: int
    kind: KwargKind = "tensor"

    @property
    def is_for_decoders(self) -> bool:
        """Whether decoder layers use it; all other kinds scale the main stream."""
        return self.kind in ("positions", "mask", "block_mask", "window")

    @property
    def is_block_mask(self) -> bool:
        """Whether it is a block mask of flex attention."""
        return self.kind in ("block_mask", "window")

    @property
    def role(self) -> str:
        """What it is to its stage: of one role, a stage gets one argument at most."""
        return self.kind if self.is_for_decoders or self.kind == "rows" else "gain"

    @property
    def name(self) -> str:
        """The name under which its stage gets it."""
        return f"{self.role}_{self.stage}"


class Passage(Strict, frozen=True, kw_only=True):
    """A tensor that stage `source` makes from its main stream and that passes, stage by stage, to stage `last`.

    The stages between pass it on unchanged; those in `users` use it, all others ignore it. Shapes, for a main
    stream ``[B, S, W]``: ``stream``, ``summed``, ``turned`` and ``bypass`` like it; ``scalar`` 0-d; ``flat``
    ``[B·S]``; ``single`` ``[B, S, 1, 1]``; ``deep`` ``[B, 1, S, 1, W]``; ``empty`` ``[B, S, 0]``; ``float8``
    like it, in float8_e4m3fn and without a gradient; ``complex`` like it, in complex64, or complex128 of a model in
    float64, and ``rotations`` the same without a gradient. The gradient of ``summed`` has stride 0, that of ``turned``
    is transposed; ``bypass`` replaces its user's main stream, which is then ignored. ``learned`` is made from a
    parameter of its source and does not depend on the stage's inputs.
    """

    kind: PassageKind
    source: int
    last: int
    users: tuple[int, ...] = ()


class Split(Strict, frozen=True, kw_only=True):
    """How a front end must split a whole model into stages; see `pipeconform.case.build.whole`."""

    by: Literal["annotations", "policy", "points"] = "annotations"
    inside: bool = False
    """Annotations are at the ends of the submodules that compute the stages, not between the calls of these."""
    after: bool = False
    """Split points are after a stage's predecessor, not before the stage."""
    reused: bool = False
    """Every stage calls its first block twice."""
    skip: bool = False
    """The last stage adds the output of the first stage."""
    tied: bool = False
    """The first and the last stage apply the same linear map."""
    early: Literal["", "watched", "added"] = ""
    """The model also returns what the last stage but one computed, the mean of each sample; the loss adds it or not."""
    wrong: Literal["", "unknown", "uncalled", "empty", "branch"] = ""
    """The last point names no submodule, one that is never called, or the first; or the code branches on values."""
    longer: bool = False
    """The last run's sequences are longer by one than those of earlier runs."""
    shorter_example: bool = False
    """The sequences of the traced example are shorter by one than those of every run."""


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
    """Further boundary tensors, after the carried ones in the container."""
    container: Literal["tensor", "tuple", "list"] = "tensor"
    output: Literal["tensor", "tuple1", "tuple", "dict"] = "tensor"
    merged: tuple[MergedKind, ...] = ()
    """Further outputs, each with a merge rule of its own; see `pipeconform.case.build.merges`."""
    kwargs: tuple[Kwarg, ...] = ()
    input_requires_grad: bool = False
    tied: tuple[int, ...] = ()
    """Stages that share one square map: none, or two or more in ascending order."""
    readout: bool = False
    """The loss function applies a square map to what it is given: a parameter of the last stage, which the stage
    itself does not use."""
    split: Split | None = None
    view_outputs: bool = False
    """Stages return what their last block returns, which may be a view, instead of a tensor of its own."""

    @property
    def num_inputs(self) -> int:
        """How many tensors the first stage takes, beside keyword arguments."""
        return 1 + len(self.carried)

    @property
    def boundaries_differ(self) -> bool:
        """Whether some tensor crosses only some of the boundaries."""
        return any((one.source, one.last) != (0, len(self.stages) - 1) for one in self.passages)

    def blocks(self) -> Iterator[AnyBlock]:
        """Every block of every stage, in order."""
        for stage in self.stages:
            yield from stage.blocks

    @property
    def is_exact(self) -> bool:
        """Whether nothing is rounded when one sample passes forward and backward; sums of samples may be."""
        return any(isinstance(block, Gain) for block in self.blocks())

    @property
    def sums_in_float32(self) -> bool:
        """Whether its gradients are to be added up in float32 although its parameters have 16 bits."""
        return self.is_exact and self.dtype == "bfloat16"


def stages_given(model: Model, kind: KwargKind) -> set[int]:
    """The stages that get a keyword argument of a kind."""
    return {kwarg.stage for kwarg in model.kwargs if kwarg.kind == kind}


def impossible_model(model: Model) -> Iterator[str]:
    """Yield the reasons why a model is impossible."""
    stages = len(model.stages)
    if model.width < 1 or model.sequence < 0:
        yield f"model.width {model.width} must be at least 1 and model.sequence {model.sequence} at least 0"
    if model.merged and (model.output != "tensor" or model.batch_dim or model.split is not None):
        yield "model.merged needs model.output 'tensor', batch_dim 0 and no model.split"
    if model.readout and (model.output != "tensor" or model.merged or model.split is not None):
        yield "model.readout needs model.output 'tensor', and no model.merged or model.split"
    if model.batch_dim == 1 and not model.sequence:
        yield "model.batch_dim 1 needs a sequence: the main stream is [sequence, B, width]"
    if any(not 0 <= kwarg.stage < stages for kwarg in model.kwargs):
        yield f"model.kwargs names a stage outside 0…{stages - 1}"
    if model.batch_dim and any(kwarg.kind == "turned" for kwarg in model.kwargs):
        yield "a 'turned' keyword argument needs model.batch_dim 0: with 1 it would be split like any other"
    if stages_given(model, "rows") - stages_given(model, "turned"):
        yield "a 'rows' keyword argument needs a 'turned' one in its stage"
    if any(isinstance(block, Attention) for block in model.blocks()) and not model.sequence:
        yield "an attention block needs model.sequence of at least 1"
    if any(isinstance(block, Decoder) for block in model.blocks()) and not model.sequence:
        yield "a decoder block needs model.sequence of at least 1"
    if any(kwarg.is_for_decoders and not _decodes(model, kwarg.stage) for kwarg in model.kwargs):
        yield "keyword arguments for decoders need a decoder block in their stage, and no model.split"
    if model.batch_dim and any(kwarg.is_block_mask for kwarg in model.kwargs):
        yield "block masks need model.batch_dim 0: they have their samples there"
    told = [kwarg.stage for kwarg in model.kwargs if kwarg.is_for_decoders]
    if any(kwarg.is_block_mask and told.count(kwarg.stage) > 1 for kwarg in model.kwargs):
        yield "a block mask goes with no other keyword argument for the decoders of its stage"
    if len({kwarg.name for kwarg in model.kwargs}) < len(model.kwargs):
        yield "model.kwargs names an argument of a stage twice"
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
        yield "model.tied cannot be combined with model.split or model.classes"
    if model.tokens != isinstance(next(model.blocks(), None), Embedding):
        yield "a token model begins with an embedding block, and only a token model does"
    for s, stage in enumerate(model.stages):
        if any(isinstance(block, Keeping) and not (s and b == 0) for b, block in enumerate(stage.blocks)):
            yield f"model.stages[{s}] has a keeping block: it begins a stage, and not the first one"
    rescaled = [block for block in model.blocks() if isinstance(block, Rescaled)]
    if rescaled and (
        len(rescaled) > 1 or rescaled[0] is not next(model.blocks()) or model.input_requires_grad
    ):
        yield "a rescaled block is the first of all, in a model whose inputs need no gradient"
    if model.tokens and model.input_requires_grad:
        yield "token inputs cannot require a gradient"
    if model.is_exact:
        yield from _inexact(model)
    if model.split is not None:
        yield from _impossible_split(model, model.split)


def _inexact(model: Model) -> Iterator[str]:
    """What else a model with gains has that would be rounded."""
    if not all(isinstance(block, Gain) for block in model.blocks()) or model.dtype not in (
        "bfloat16",
        "float32",
    ):
        yield "a model with a gain block consists of such blocks, in bfloat16 or float32"
    if model.sequence > 1 or model.output != "tensor" or model.split is not None:
        yield "a model with gain blocks has a model.sequence of at most 1, no model.split and the model.output 'tensor'"
    if model.classes or model.carried or model.kwargs or model.passages or model.tied or model.merged:
        yield "a model with gain blocks has no classes, carried tensors, kwargs, passages, tied or merged tensors"
    if model.readout:
        yield "a model with gain blocks has no model.readout"


def _decodes(model: Model, stage: int) -> bool:
    here = (block for one in model.stages[stage : stage + 1] for block in one.blocks)
    return model.split is None and any(isinstance(block, Decoder) for block in here)


def _impossible_split(model: Model, split: Split) -> Iterator[str]:
    stages = len(model.stages)
    if model.carried or model.container != "tensor" or model.tokens or model.classes:
        yield "model.split needs one floating tensor between stages: no carried tensors, containers, tokens or classes"
    if split.wrong in ("unknown", "uncalled", "empty") and split.by != "points":
        yield f"model.split.wrong {split.wrong!r} needs model.split.by 'points', not {split.by!r}"
    if stages < (3 if split.skip else 2 if split.tied or split.early else 1):
        yield f"{stages} stages are too few for model.split: a skip connection needs 3, a tied map or an early output 2"
    if split.early and model.batch_dim:
        yield "model.split.early needs model.batch_dim 0: what is returned early has a number for each sample"
    if split.inside and split.by != "annotations":
        yield f"model.split.inside needs model.split.by 'annotations', not {split.by!r}"
    if (split.longer or split.shorter_example) and not model.sequence:
        yield "model.split.longer and model.split.shorter_example need a sequence"
