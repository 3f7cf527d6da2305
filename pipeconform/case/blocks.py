"""The blocks of a stage, as data; `pipeconform.case.build.layers` turns them into torch modules.

Every block maps the main stream (``[…, width]``) to one of the same shape, except `Embedding`
(token ids ``[…]`` to ``[…, width]``) and `Head` (``[…, width]`` to ``[…, classes]``).
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Block(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="block",
    tag=str.lower,
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """The base of all blocks; the parameters of a frozen block need no gradient."""

    frozen: bool = False


class Linear(Block, frozen=True, kw_only=True):
    """``x W^T + b``."""

    bias: bool = True


class Mlp(Block, frozen=True, kw_only=True):
    """Two linear maps with GELU between, added to the input."""


class Norm(Block, frozen=True, kw_only=True):
    """Layer normalisation over the width."""


class Attention(Block, frozen=True, kw_only=True):
    """One head of self-attention over the sequence without a causal mask, added to the input."""


class Decoder(Block, frozen=True, kw_only=True):
    """A layer of today's language models: attention and a gated map, each of them normalised first and added.

    RMSNorm; rotary embeddings; causal attention of four query heads, which share `kv_heads` heads of keys and values;
    SwiGLU. Nothing has a bias. Keyword arguments of its stage, if any, are positions and a mask.
    """

    kv_heads: Literal[1, 2] = 1


class Embedding(Block, frozen=True, kw_only=True):
    """Maps token ids to vectors; the first block of the first stage of a token model."""


class Head(Block, frozen=True, kw_only=True):
    """Maps vectors to class scores; the last block of the last stage of a classifier."""


class BatchNorm(Block, frozen=True, kw_only=True):
    """Batch normalisation over every dimension but the width, with running statistics."""


class Counting(Block, frozen=True, kw_only=True):
    """A linear map with a buffer that every forward in training mode replaces by the next number.

    With `expanded` it has a second one, a mask that nothing changes, whose elements are one place in memory.
    """

    expanded: bool = False


class SyncedNorm(Block, frozen=True, kw_only=True):
    """Batch normalisation with statistics over one microbatch of every replica."""


class Dropout(Block, frozen=True, kw_only=True):
    """Inverted dropout with probability one half, from the process's random state."""


class Shared(Block, frozen=True, kw_only=True):
    """One linear map applied twice: its parameters receive two contributions."""


class Unused(Block, frozen=True, kw_only=True):
    """The identity, with a parameter that nothing uses."""


class Branch(Block, frozen=True, kw_only=True):
    """A linear map used only by microbatches whose first value is positive."""


class Bypass(Block, frozen=True, kw_only=True):
    """A linear map that only microbatches whose first value is positive go through; others pass by it."""


class Rescaled(Block, frozen=True, kw_only=True):
    """Halves its input in place, as images are scaled, and a linear map. Begins the first stage."""


class Inplace(Block, frozen=True, kw_only=True):
    """A linear map whose result is modified in place; the last operation is an activation that saves its own result."""


class Activation(Block, frozen=True, kw_only=True):
    """A linear map and a function whose backward needs its result, which is no view and nothing else keeps."""

    kind: Literal["relu", "tanh", "sigmoid", "softmax"] = "tanh"


class Layout(Block, frozen=True, kw_only=True):
    """The same values in another memory layout: transposed strides, or expanded with stride 0."""

    kind: Literal["transposed", "expanded"] = "transposed"


class Auxiliary(Block, frozen=True, kw_only=True):
    """A linear map with a loss of its own, whose gradient a custom autograd function adds in the backward."""


class Checkpointed(Block, frozen=True, kw_only=True):
    """An `Mlp`, with optional dropout, under activation checkpointing: the backward runs it again."""

    reentrant: bool = False
    dropout: bool = False


class Compiled(Block, frozen=True, kw_only=True):
    """An `Mlp` under torch.compile, wrapped or compiled in place; the backend aot_eager needs no C++ compiler."""

    how: Literal["wrapped", "in_place"] = "wrapped"


class Stateful(Block, frozen=True, kw_only=True):
    """A linear map that stores on the module, for every forward, what a custom autograd function's backward needs."""


class Tied(Block, frozen=True, kw_only=True):
    """Two linear maps in sequence that share their weight or their bias."""

    what: Literal["weight", "bias"] = "weight"


class Hooked(Block, frozen=True, kw_only=True):
    """A linear map with a forward hook, a pre-forward hook and a tensor hook, which count their calls."""


class Pieces(Block, frozen=True, kw_only=True):
    """A linear map to twice the width, split by a node with several outputs and combined again."""

    how: Literal["chunk", "split", "unbind"] = "chunk"


class Common(Block, frozen=True, kw_only=True):
    """Three parameters; the third is used together with each of the others."""


class Offsets(Block, frozen=True, kw_only=True):
    """Two parameters added to a mean over all samples, which has exactly their shape."""


class Combined(Block, frozen=True, kw_only=True):
    """A linear map whose weight is the sum of two parameters, or one to which the sum of three learned rows is added.

    The gradient of each of the two is one tensor; that of the rows is one row, expanded.
    """

    how: Literal["added", "rows"] = "added"


class Joined(Block, frozen=True, kw_only=True):
    """A learned and a fixed row concatenated to every sample, as prompts are, and a linear map back to the width."""


class Accumulating(Block, frozen=True, kw_only=True):
    """A linear map whose parameters have post-accumulate-grad hooks, which count their calls."""


class InputHooked(Block, frozen=True, kw_only=True):
    """A linear map; hooks on the inputs of the stage that holds it count their calls. Begins its stage.

    A tensor hook on each input, or one for all of them `together`, as FLOP counters and module trackers set it.
    """

    together: bool = False


class Keeping(Block, frozen=True, kw_only=True):
    """A linear map that keeps every input, and whose buffer says whether one of them has changed. Begins its stage."""


class GradientHooked(Block, frozen=True, kw_only=True):
    """A linear map with hooks that count: tensor hooks on its parameters, or backward hooks of the module."""

    on: Literal["parameters", "module"] = "parameters"


class Overflowing(Block, frozen=True, kw_only=True):
    """A linear map; where the gradient of its bias is larger than 2, it is infinite, as of a kernel that overflows."""


class Gain(Block, frozen=True, kw_only=True):
    """A factor for every column, which begins at 1. A model of nothing else is computed without rounding."""


class Deferred(Block, frozen=True, kw_only=True):
    """A linear map whose weight gradient the stage's deferred-weight function computes."""


AnyBlock = (
    Linear
    | Mlp
    | Norm
    | Attention
    | Decoder
    | Embedding
    | Head
    | BatchNorm
    | Counting
    | SyncedNorm
    | Dropout
    | Shared
    | Unused
    | Branch
    | Bypass
    | Rescaled
    | Inplace
    | Activation
    | Hooked
    | Pieces
    | Common
    | Offsets
    | Combined
    | Joined
    | Accumulating
    | InputHooked
    | Keeping
    | GradientHooked
    | Overflowing
    | Gain
    | Deferred
    | Layout
    | Auxiliary
    | Checkpointed
    | Compiled
    | Stateful
    | Tied
)
