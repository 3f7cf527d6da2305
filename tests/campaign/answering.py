"""Pools whose ranks answer what a test says, and whose oracle computes in this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from pipeconform.adapter import Capabilities
from pipeconform.execute.job import Job
from pipeconform.ranks.verdict import Raised, Returned, VerdictVector
from tests.case.examples import EVERYTHING
from tests.judge.honest import honest

__all__ = ["Answering", "honest_ranks"]

_CONTEXT = SimpleNamespace(device=torch.device("cpu"))


def honest_ranks(job: Job, capabilities: Capabilities = EVERYTHING) -> Iterable[object]:
    """What the ranks of an implementation without a fault show."""
    return honest(job.case.without_mistakes, capabilities=capabilities).shown


class Answering:
    """As `RankPools`; ``done`` has what was asked of ranks and processes, in order."""

    environment: Any = None
    hosts: tuple[str, ...] = ()
    idle_limit = 0.0

    def __init__(
        self,
        ranks: Callable[[Any], Iterable[object]] = honest_ranks,
        *,
        kind: type[Any] = Job,
        ends_after_errors: bool = True,
        oracle_fails: bool = False,
    ) -> None:
        self.ranks, self.kind, self.oracle_fails = ranks, kind, oracle_fails
        self.devices: Any = SimpleNamespace(ends_after_errors=ends_after_errors)
        self.jobs: list[Any] = []
        self.done: list[str] = []
        self.expected: list[bool] = []
        self.limits: list[float] = []
        self.questions: list[bytes] = []
        self.size = 0
        self.oracle: Any = _Oracle(self)

    def of_size(self, world_size: int) -> Any:
        self.size = world_size
        return self

    def restart(self) -> None:
        self.done.append(f"restart {self.size}")

    def run(self, task: str, payload: bytes, *, time_limit: float, failure_expected: bool = False) -> Any:
        """One answer per rank: a verdict as it is, bytes as they are, anything else encoded."""
        job = msgspec.msgpack.decode(payload, type=self.kind)
        self.jobs.append(job)
        self.done.append(f"run {self.size}")
        self.limits.append(time_limit)
        self.expected.append(failure_expected)
        return VerdictVector(tuple(map(_verdict, self.ranks(job))))


def _verdict(answer: object) -> Any:
    if isinstance(answer, bytes):
        return Returned(answer, 0.5)
    return answer if hasattr(answer, "after") else Returned(msgspec.msgpack.encode(answer), 0.5)


class _Oracle:
    """Runs tasks by name, here."""

    def __init__(self, pools: Answering) -> None:
        self._pools = pools

    def start(self, task: str, question: bytes, *, time_limit: float) -> Any:
        self._pools.questions.append(question)
        self._pools.limits.append(time_limit)
        return SimpleNamespace(
            wait=lambda: self.run(task, question, time_limit=time_limit),
            cancel=lambda: self._pools.done.append("cancel"),
        )

    def run(self, task: str, question: bytes, *, time_limit: float) -> Any:
        module, _, function = task.partition(":")
        if self._pools.oracle_fails:
            return VerdictVector((Raised("ValueError", "no oracle"),))
        return VerdictVector(
            (Returned(getattr(importlib.import_module(module), function)(_CONTEXT, question)),)
        )

    def restart(self) -> None:
        self._pools.done.append("restart oracle")
