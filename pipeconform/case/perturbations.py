"""What befalls a pipeline's ranks from outside while a case runs: delays, a stop, an error, a death.

All of it is data: drawn, printed, shrunk and replayed with the case. `pipeconform.execute.disturber` does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

__all__ = ["AnyPerturbation", "Misfortune", "Perturbation", "SlowLink", "impossible"]

Misfortune = Literal["delay", "stop", "error", "kill"]


class _Data(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="perturbation",
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """Strict, immutable, printed without what is default."""


class Perturbation(_Data, frozen=True, kw_only=True, tag="compute"):
    """The rank that runs a stage sleeps, is stopped and continued, raises or is killed.

    It happens inside the stage: *before* a computation its inputs have been received, *after* it the result
    has not been sent. A ``stop`` (SIGSTOP, then SIGCONT) holds all threads of the process, a ``delay`` only
    the one that computes. The gradient of a stage's inputs tells that a backward is over, so after a
    backward of the first stage nothing happens unless the model's inputs require gradients.
    """

    what: Misfortune = "delay"
    stage: int
    part: Literal["forward", "backward"] = "forward"
    when: Literal["before", "after"] = "before"
    microbatch: int | None = None
    """Counted as the stage's forwards in a run come, dry runs included; None is every one."""
    run: int | None = None
    """Which of the program's runs, from 0; None is every one."""
    milliseconds: int = 0
    """How long a delay or a stop lasts."""
    replica: int | None = None
    """Of the pipeline, from 0; None is every one."""


class SlowLink(_Data, frozen=True, kw_only=True, tag="link"):
    """A rank that is slow to begin every send (receive, reduction over replicas), or to go on after having begun it."""

    rank: int
    """In the pipeline, from 0."""
    side: Literal["send", "receive", "reduce"] = "send"
    when: Literal["before", "after"] = "before"
    milliseconds: int
    replica: int | None = None
    """Of the pipeline, from 0; None is every one."""


AnyPerturbation = Perturbation | SlowLink


def impossible(
    perturbations: Sequence[AnyPerturbation],
    *,
    num_ranks: int,
    num_stages: int,
    runs: Sequence[int],
    num_replicas: int = 1,
) -> Iterator[str]:
    """Yield what cannot happen, in words; `runs` holds the number of microbatches of every run."""
    for number, one in enumerate(perturbations):
        name = f"world.perturbations[{number}]"
        if one.replica is not None and not 0 <= one.replica < num_replicas:
            yield f"{name}.replica {one.replica} is none of {num_replicas}"
        lasting = isinstance(one, SlowLink) or one.what in ("delay", "stop")
        if (one.milliseconds > 0) is not lasting:
            yield f"{name} lasts {one.milliseconds} ms: a delay or a stop takes time, an error or a death none"
        if isinstance(one, SlowLink):
            if not 0 <= one.rank < num_ranks:
                yield f"{name}.rank {one.rank} is no rank of a pipeline of {num_ranks}"
            continue
        if not 0 <= one.stage < num_stages:
            yield f"{name}.stage {one.stage} is outside 0…{num_stages - 1}"
        if one.run is not None and not 0 <= one.run < len(runs):
            yield f"{name}.run {one.run} is outside 0…{len(runs) - 1}"
        most = max(runs, default=0)
        if one.microbatch is not None and not 0 <= one.microbatch < most:
            yield f"{name}.microbatch {one.microbatch} is outside 0…{most - 1}"
