"""Engines that note what the harness asks of them around a restart, and one that claims to save and cannot."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline


class Notes(ReferencePipeline):
    """Fails unless what is restored was saved by all, and the parameters are others than those that were saved."""

    built = closed = 0

    def __init__(self, plan):
        Notes.built += 1
        super().__init__(plan)

    def save(self, folder):
        assert not list(folder.iterdir()) or self.plan.ranks.rank, "the folder is empty"
        time.sleep(0.05 * self.plan.ranks.rank)  # the others must wait
        torch.save(
            [p.detach().clone() for p in self.own_parameters()], folder / f"own-{self.plan.ranks.rank}"
        )
        super().save(folder)

    def close(self):
        super().close()
        Notes.closed += 1

    def restore(self, folder):
        assert Notes.built % 2 == 0, "a second pipeline restores"
        assert Notes.closed == Notes.built - 1, "the first one is closed"
        world = dist.get_world_size()
        assert all((folder / f"own-{rank}").exists() for rank in range(world)), "all ranks have saved"
        before = torch.load(folder / f"own-{self.plan.ranks.rank}")
        for old, new in zip(before, self.own_parameters(), strict=True):
            assert not old.equal(new), "the parameters are others"
        super().restore(folder)


class NotesThem(ReferenceAdapter):
    """Has pipelines that take notes."""

    pipeline = Notes


class CannotSave(ReferenceAdapter):
    """Claims everything that the reference does, but its pipelines have no save()."""

    def build(self, plan):
        return Hiding(super().build(plan))


class RestoresNothing(ReferenceAdapter):
    """The same, without restore() alone."""

    def build(self, plan):
        return Hiding(super().build(plan), "restore")


class Hiding:
    def __init__(self, inner, *names):
        self.inner, self.names = inner, names or ("save", "restore")

    def __getattr__(self, name):
        if name in self.names:
            raise AttributeError(name)
        return getattr(self.inner, name)


class AsksForMorePipeline(ReferencePipeline):
    def restore(self, folder, strict):
        super().restore(folder)


class AsksForMore(ReferenceAdapter):
    """Its restore() has a parameter that nothing gives."""

    pipeline = AsksForMorePipeline


class SavesNothing(ReferencePipeline):
    def save(self, folder):
        """Keep everything in memory."""


class SavesElsewhere(ReferenceAdapter):
    """Its save() writes no file."""

    pipeline = SavesNothing


class Quotes(ReferencePipeline):
    def restore(self, folder):
        raise RuntimeError(f"nothing in {folder}")


class QuotesTheFolder(ReferenceAdapter):
    """Names in its error the folder that it was given."""

    pipeline = Quotes
