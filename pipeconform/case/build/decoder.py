"""A layer of a decoder as today's language models have it, with a few small heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeconform.case.build.block_masks import allowed_by

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["EARLIER", "DecoderLayer"]

EARLIER = 8
"""How many tokens of a sample's first document may precede the sample, and one more."""
_HEADS, _SIZE = 4, 4
"""Of queries, and the width of each head."""
_BASE = 100.0
"""Of the rotation frequencies; real models have 10,000 and longer sequences, for which it must be larger."""


class DecoderLayer(nn.Module):
    """RMSNorm, rotary embeddings, grouped-query causal attention; RMSNorm, SwiGLU.

    The table of rotations is a buffer that is no part of the module's state, as everywhere.
    """

    rotations: Tensor

    def __init__(self, width: int, *, kv_heads: int, sequence: int, sequence_dim: int) -> None:
        super().__init__()
        self.sequence_dim = sequence_dim
        self.attention_norm, self.map_norm = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.query = nn.Linear(width, _HEADS * _SIZE, bias=False)
        self.key = nn.Linear(width, kv_heads * _SIZE, bias=False)
        self.value = nn.Linear(width, kv_heads * _SIZE, bias=False)
        self.out = nn.Linear(_HEADS * _SIZE, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        speeds = _BASE ** -(torch.arange(0, _SIZE, 2, dtype=torch.float64) / _SIZE)
        angles = torch.arange(EARLIER + sequence, dtype=torch.float64).unsqueeze(-1) * speeds
        self.register_buffer("rotations", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        block_mask: BlockMask | None = None,
    ) -> Tensor:
        """Map the main stream; `positions` and `mask` have its shape without the width.

        `block_mask`, which goes with neither, has the stream's samples or a single one.
        """
        if self.sequence_dim == 0:
            x = x.transpose(0, 1)
            positions = None if positions is None else positions.transpose(0, 1)
            mask = None if mask is None else mask.transpose(0, 1)
        y = self.attention_norm(x)
        query, key, value = (self._heads(part(y)) for part in (self.query, self.key, self.value))
        table = self.rotations[:, : x.shape[1]] if positions is None else self.rotations[:, positions]
        # flex attention has no backward on the CPU, and its compiled kernels differ from machine to machine
        seen = _allowed(positions, mask)
        if block_mask is not None:
            seen = allowed_by(block_mask, samples=x.shape[0], sequence=x.shape[1])
        mixed = functional.scaled_dot_product_attention(
            _turned(query, table),
            _turned(key, table),
            value,
            attn_mask=seen,
            is_causal=seen is None,
            enable_gqa=True,
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.map_norm(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return x if self.sequence_dim == 1 else x.transpose(0, 1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], -1, _SIZE).transpose(1, 2)


def _turned(x: Tensor, table: Tensor) -> Tensor:
    """The pairs of a head's values (the first and the second half) turned by the angles of their positions."""
    cosine, sine = (one.unsqueeze(-3) for one in table)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def _allowed(positions: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Which tokens attend to which, ``[B, 1, S, S]``; None if to all before them."""
    told = positions if mask is None else mask
    if told is None:
        return None
    every = torch.ones(*told.shape, told.shape[1], dtype=torch.bool, device=told.device)
    allowed = every.tril()
    if positions is not None:
        document = (positions == 0).cumsum(1)
        allowed = allowed & (document.unsqueeze(2) == document.unsqueeze(1))
    if mask is not None:
        allowed = allowed & (
            mask.unsqueeze(1) | torch.eye(told.shape[1], dtype=torch.bool, device=told.device)
        )
    return allowed.unsqueeze(1)
