"""Which options of data-parallel wrappers a claim allows to draw."""

from __future__ import annotations

from typing import Any

from pipeconform.adapter import DataParallelClaim

__all__ = ["options_of"]


def options_of(claim: DataParallelClaim) -> list[dict[str, Any]]:
    """Options of the wrappers; without any where accumulation is what the case is about."""
    found: list[dict[str, Any]] = []
    if claim.accumulation:
        found += [{"wrapper": wrapper} for wrapper in claim.wrappers]
    if "ddp" in claim.wrappers:
        ddp = [name for name in ("bucket_views", "hook", "static_graph") if name in claim.options]
        found += [{"wrapper": "ddp", name: True} for name in ddp]
        if len(ddp) > 1:
            found += [{"wrapper": "ddp", ddp[0]: True, name: True} for name in ddp[1:]]
    if claim.accumulation and "fully_shard" in claim.wrappers and "nested" in claim.options:
        found.append({"wrapper": "fully_shard", "nested": True})
    return found
