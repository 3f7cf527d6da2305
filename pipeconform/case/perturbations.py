"""Disturbances of a pipeline's ranks while a case runs: delays, stops, errors, killed processes.

They are data, drawn, printed, shrunk and replayed with the case; `pipeconform.execute.disturber` carries them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

__all__ = ["AnyPerturbation", "Perturbation", "PerturbationKind", "SlowLink", "impossible"]

PerturbationKind = Literal["delay", "stop", "error", "kill"]


class _Data(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="perturbation",
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """The base of perturbations: immutable, without unknown fields, and printed without defaults."""


class Perturbation(_Data, frozen=True, kw_only=True, tag="compute"):
    """The rank that runs a stage sleeps, is stopped and continued, raises, or is killed.

    This happens inside the stage: *before* a computation, after its inputs were received; *after* it, before the
    result is sent. A ``stop`` (SIGSTOP, then SIGCONT) holds all threads of the process, a ``delay`` only the thread
    that computes. The gradient of a stage's inputs marks the end of a backward, so nothing happens after a backward of
    the first stage unless the model's inputs require gradients.
    """

    what: PerturbationKind = "delay"
    stage: int
    part: Literal["forward", "backward"] = "forward"
    when: Literal["before", "after"] = "before"
    microbatch: int | None = None
    """The number of the stage's forward within a run, dry runs included; None for every microbatch."""
    run: int | None = None
    """The number of the program's run, from 0; None for every run."""
    milliseconds: int = 0
    """How long a delay or a stop lasts."""
    replica: int | None = None
    """The number of the pipeline's replica, from 0; None for every replica."""


class SlowLink(_Data, frozen=True, kw_only=True, tag="link"):
    """A rank that starts every send (receive, reduction over replicas) late, or continues late after starting it."""

    rank: int
    """The rank in the pipeline, from 0."""
    side: Literal["send", "receive", "reduce"] = "send"
    when: Literal["before", "after"] = "before"
    milliseconds: int
    replica: int | None = None
    """The number of the pipeline's replica, from 0; None for every replica."""


AnyPerturbation = Perturbation | SlowLink


def impossible(
    perturbations: Sequence[AnyPerturbation],
    *,
    num_ranks: int,
    num_stages: int,
    runs: Sequence[int],
    num_replicas: int = 1,
) -> Iterator[str]:
    """Yield the reasons why perturbations are impossible; `runs` holds the number of microbatches of every run."""
    for number, one in enumerate(perturbations):
        name = f"world.perturbations[{number}]"
        if one.replica is not None and not 0 <= one.replica < num_replicas:
            yield f"{name}.replica {one.replica} is outside 0…{num_replicas - 1}"
        lasting = isinstance(one, SlowLink) or one.what in ("delay", "stop")
        if (one.milliseconds > 0) is not lasting:
            yield f"{name} lasts {one.milliseconds} ms: delays and stops need a duration, errors and kills have none"
        if isinstance(one, SlowLink):
            if not 0 <= one.rank < num_ranks:
                yield f"{name}.rank {one.rank} is outside 0…{num_ranks - 1}"
            continue
        if not 0 <= one.stage < num_stages:
            yield f"{name}.stage {one.stage} is outside 0…{num_stages - 1}"
        if one.run is not None and not 0 <= one.run < len(runs):
            yield f"{name}.run {one.run} is outside 0…{len(runs) - 1}"
        most = max(runs, default=0)
        if one.microbatch is not None and not 0 <= one.microbatch < most:
            yield f"{name}.microbatch {one.microbatch} is outside 0…{most - 1}"
