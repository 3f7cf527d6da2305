"""Puts a new pipeline in the place of one that has saved its training (LIF-10)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from msgspec import structs

from pipeconform.case.case import Case
from pipeconform.case.seeds import seed_of
from pipeconform.errors import ContractError, Unsupported
from pipeconform.execute.answers import CheckedPipeline
from pipeconform.execute.votes import on_every_rank
from pipeconform.observe.observation import WAITS_FOR_OTHERS
from pipeconform.observe.recorder import ForwardRecorder
from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.recording.recorder import our_own

__all__ = ["begun_anew", "common_folder", "restart"]

_NAME = "saved"


def begun_anew(case: Case) -> Case:
    """The case of the pipeline that takes the place of another: its stages have other parameters."""
    return structs.replace(case, seed=seed_of(case.seed, "restart"))


def common_folder(context: RankContext) -> Path:
    """A folder that all ranks see.

    Raises:
        Unsupported: On every rank: they do not see the same files.
    """
    place = [context.folder]
    if dist.is_initialized():
        with our_own():
            dist.broadcast_object_list(place, src=0, device=torch.device(context.device))
    folder = Path(place[0]) / _NAME
    if context.rank == 0:
        _emptied(folder)
    _wait(context)
    if not on_every_rank(folder.is_dir(), device=context.device, words=WAITS_FOR_OTHERS):
        raise Unsupported("the ranks do not see the same files, which save() and restore() need")
    return folder


def restart(
    pipeline: CheckedPipeline,
    *,
    build: Callable[[], CheckedPipeline],
    folder: Path,
    context: RankContext,
    recorder: ForwardRecorder,
) -> None:
    """Let `pipeline` save its training and close it, and let it become what `build` builds, and what restores that.

    Raises:
        ContractError: On every rank: nothing was saved.
    """
    if context.rank == 0:
        _emptied(folder)
    _wait(context)
    with recorder.inside_call("save()"):
        pipeline.save(folder)
    pipeline.close()
    _wait(context)
    if not any(folder.iterdir()):
        raise ContractError(
            "save() returned on every rank, and the folder that it was given is empty; "
            "write there what restore() reads, before save() returns"
        )
    pipeline.become(build())
    with recorder.inside_call("restore()"):
        pipeline.restore(folder)


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _wait(context: RankContext) -> None:
    on_every_rank(True, device=context.device, words=WAITS_FOR_OTHERS)
