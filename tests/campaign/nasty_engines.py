"""Engines that are bad guests in their processes, each the reference with one bad habit."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import socket
import struct
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Description, Mode, Plan, StepResult


class _Alone(ReferenceAdapter):
    """Asks for new processes for every build."""

    def describe(self) -> Description:
        description = super().describe()
        claims = replace(description.capabilities, fresh_process_per_build=True)
        return replace(description, capabilities=claims)


class _AbortingPipeline(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if self.plan.ranks.rank == 0:
            os.abort()
        return super().run(mode, batch)


class Aborts(ReferenceAdapter):
    """The first rank's process aborts, as native code does."""

    pipeline = _AbortingPipeline


class _OncePipeline(ReferencePipeline):
    built = False

    def __init__(self, plan: Plan) -> None:
        if _OncePipeline.built:
            raise RuntimeError("the engine is initialised already")
        _OncePipeline.built = True
        super().__init__(plan)


class BuiltTwice(ReferenceAdapter):
    """Cannot be built a second time in one process, and does not say so."""

    pipeline = _OncePipeline


class BuiltOnce(_Alone):
    """Cannot be built a second time in one process, and says so."""

    pipeline = _OncePipeline


class _LockingPipeline(ReferencePipeline):
    """Takes turns in compiling as torch's extensions do: by a file that a killed process leaves behind."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if plan.ranks.rank == 0:
            lock = Path(os.environ.get("TORCH_EXTENSIONS_DIR", tempfile.gettempdir()), "lock")
            while lock.exists():
                time.sleep(0.05)
            lock.touch()

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if self.plan.ranks.rank == 0:
            os._exit(3)
        return super().run(mode, batch)


class LeavesLock(_Alone):
    """Dies while it holds a lock that the next build waits for."""

    pipeline = _LockingPipeline


class _SendingPipeline(ReferencePipeline):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if plan.ranks.world_size > 1:
            threading.Thread(
                target=_send_for_ever, args=(plan.ranks.rank, plan.ranks.world_size), daemon=True
            ).start()


def _send_for_ever(rank: int, size: int) -> None:
    while True:  # to the world's group, where nobody receives
        dist.isend(torch.zeros(1 << 16), dst=(rank + 1) % size)
        time.sleep(0.01)


class SendsForEver(_Alone):
    """A daemon thread goes on sending after the step, and after close()."""

    pipeline = _SendingPipeline


class _TalkingPipeline(ReferencePipeline):
    runs = 0

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        _TalkingPipeline.runs += 1
        told = torch.tensor(_TalkingPipeline.runs)
        if self.plan.ranks.rank == 0:
            self._sent = dist.isend(told, dst=1)
        result = super().run(mode, batch)
        if self.plan.ranks.rank == 1:
            dist.recv(heard := torch.empty_like(told), src=0)
            if not torch.equal(heard, told):
                raise RuntimeError(f"run {int(told)} was told of run {int(heard)}")
        return result


class TalksInTheWorld(ReferenceAdapter):
    """Every run sends a message to the world's default group, which is not received where the run fails."""

    pipeline = _TalkingPipeline


class _SulkingPipeline(ReferencePipeline):
    failed = False

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if _SulkingPipeline.failed:
            raise RuntimeError("an earlier step failed")
        try:
            return super().run(mode, batch)
        except Exception:
            _SulkingPipeline.failed = True
            raise


class Sulks(ReferenceAdapter):
    """After an error nothing works in the same process."""

    pipeline = _SulkingPipeline


class _Unpickled:
    """Makes a folder where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (os.path.join(tempfile.gettempdir(), "unpickled"),)


def _write_to_controller(kind: int, body: bytes) -> None:
    """Answer every task that may be running, on the socket that the harness holds."""
    for found in gc.get_objects():
        if isinstance(found, socket.socket) and found.family == socket.AF_UNIX and found.fileno() >= 0:
            for number in range(1, 64):
                found.sendall(struct.pack("<QdBQ", number, time.monotonic(), kind, len(body)) + body)


class _PicklingPipeline(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        _write_to_controller(6, pickle.dumps(_Unpickled()))
        return super().run(mode, batch)


class SendsPickles(ReferenceAdapter):
    """Writes a pickle to the harness's socket, to have code run where verdicts are made."""

    pipeline = _PicklingPipeline


class _BabblingPipeline(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        _write_to_controller(5, b"passed!")
        return super().run(mode, batch)


class SendsNonsense(ReferenceAdapter):
    """Answers for the harness, in words that it does not understand."""

    pipeline = _BabblingPipeline


class SpoilsTheOracle(ReferenceAdapter):
    """Replaces the oracle in every process that describes it."""

    def describe(self) -> Description:
        oracle = importlib.import_module("pipeconform.oracle.full_model")
        oracle.answer = lambda _context, _question: b"nonsense"
        return super().describe()
