"""Judgements about sharded training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeconform.judge.finding import Finding
from pipeconform.observe.array import Array
from pipeconform.wrappers.judge import WrapperEvidence, differing, is_right

__all__ = ["is_of", "trains_like_ddp"]


def trains_like_ddp(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Check that every step equals that of the unwrapped module, and that the final parameters equal those of DDP.

    DDP and the wrapper both trained from the initial values: their difference may be as large as that of two right
    evaluations of the whole training.
    """
    found = list(is_right(evidence))
    yield from found
    if found:
        return
    for shown in evidence.shown:

        def bounds(rank: int = shown.rank) -> Mapping[str, Array]:
            return evidence.unbroken().after_bounds[-1][rank]

        for name, mismatch in differing(evidence, shown.beside, shown.final, bounds=bounds):
            text = f"rank {shown.rank}: {name} after training is not what DDP has\n{mismatch.describe()}"
            yield Finding(kind="trained apart", message=text, rank=shown.rank, mismatch=mismatch)
            return


def is_of(evidence: WrapperEvidence, combination: dict[str, str]) -> bool:
    """Whether the case has all options of a combination."""
    case, sharding = evidence.case, evidence.case.options.sharding
    told = {
        "module": case.module,
        "ranks": str(case.ranks),
        "strategy": "" if sharding is None else sharding.strategy,
        "nesting": "" if sharding is None else sharding.nesting,
        "original_parameters": "" if sharding is None else str(sharding.original_parameters),
        "forward_prefetch": "" if sharding is None else str(sharding.forward_prefetch),
        "backward_prefetch": "" if sharding is None else str(sharding.backward_prefetch),
        "optimizer": case.optimizer,
        "compiled": str(case.compiled),
    }
    return all(told.get(axis) == value for axis, value in combination.items())
