"""Adapters with mistakes of their own, and machines that lack what is asked for; `test_blame` lists what is said."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Unsupported


class TakesOptions(ReferenceAdapter):
    def build(self, plan, options):
        return super().build(plan)


class Inner:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class RunsBatch(ReferenceAdapter):
    class Pipeline(Inner):
        def run(self, batch):
            return self.inner.run(batch)

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class AppliesNothing(ReferenceAdapter):
    class Pipeline(Inner):
        def apply(self):
            return None

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class Imports(ReferenceAdapter):
    def build(self, plan):
        import not_there_at_all

        return not_there_at_all.build(plan)


class ImportsName(ReferenceAdapter):
    def build(self, plan):
        from torch.distributed.pipelining import NoSuchSchedule

        return NoSuchSchedule(plan)


class Misspells(ReferenceAdapter):
    def build(self, plan):
        return plan.stges


class Undefined(ReferenceAdapter):
    class Pipeline(Inner):
        def run(self, mode, batch):
            return self.inner.run(mode, bach)  # noqa: F821 - the mistake

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class Misindexes(ReferenceAdapter):
    class Pipeline(Inner):
        def gradients(self):
            return {0: self.inner.gradients()["first"]}

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class Compares(ReferenceAdapter):
    def setup_process(self):
        self.limit = None

    def build(self, plan):
        if plan.num_microbatches > self.limit:
            raise Unsupported("too many")
        return super().build(plan)


class NoDevice(ReferenceAdapter):
    def build(self, plan):
        torch.zeros(1, device="cuda")
        return super().build(plan)


class NoBackend(ReferenceAdapter):
    def build(self, plan):
        dist.new_group(backend="mpi")
        return super().build(plan)


class MisspellsInDescribe(ReferenceAdapter):
    def describe(self):
        return self.descripton


class ClaimsUnknown(ReferenceAdapter):
    def describe(self):
        description = super().describe()
        (first, *others) = description.capabilities.schedules
        claims = replace(description.capabilities, schedules=(replace(first, family="gpip"), *others))
        return replace(description, capabilities=claims)


class LacksState(ReferenceAdapter):
    class Pipeline(Inner):
        def __getattr__(self, name):
            if name == "state":
                raise AttributeError(name)
            return getattr(self.inner, name)

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class BuildsNothing(ReferenceAdapter):
    def build(self, plan):
        super().build(plan)


class ReturnsTuples(ReferenceAdapter):
    class Pipeline(Inner):
        def run(self, mode, batch):
            found = self.inner.run(mode, batch)
            return found.output, found.losses

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class OwnsAList(ReferenceAdapter):
    class Pipeline(Inner):
        def owned(self):
            return list(self.inner.owned().values())

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class NumbersStagesAnew(ReferenceAdapter):
    class Pipeline(Inner):
        def gradients(self):
            return dict(enumerate(self.inner.gradients().values(), start=10))

    def build(self, plan):
        return self.Pipeline(super().build(plan))


class CallsWithTooMuch(ReferenceAdapter):
    """The engine's function takes no such argument: the call itself fails, in the adapter's line."""

    def build(self, plan):
        torch.nn.Linear(3, 3, 3, 3, 3, 3)
        return super().build(plan)


class SetsUpWrongly(ReferenceAdapter):
    def setup_process(self):
        self.ports = {}
        self.port = self.ports["first"]


class ImportsAHalfWrittenFile(ReferenceAdapter):
    def build(self, plan):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "half_written.py").write_text("def build(plan)\n    return plan\n")
            sys.path.insert(0, folder)
            try:
                import half_written
            finally:
                sys.path.remove(folder)
        return half_written.build(plan)


class LooksUpSizes(ReferenceAdapter):
    """Its own line raises where a batch has another size: that is its answer to a wrong batch."""

    class Pipeline(Inner):
        def run(self, mode, batch):
            for values in (*batch.args, batch.target):
                if values is not None:
                    {2: "both microbatches have a sample"}[len(values)]
            return self.inner.run(mode, batch)

    def build(self, plan):
        return self.Pipeline(super().build(plan))
