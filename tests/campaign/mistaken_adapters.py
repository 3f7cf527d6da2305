"""Adapters with mistakes of their own, engines that are wrong, and machines that lack what is asked for."""

from __future__ import annotations

import json
import math

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
        dist.new_group(backend="nccl")
        return super().build(plan)


class EngineRaises(ReferenceAdapter):
    def build(self, plan):
        print("the engine begins")
        json.loads("{nonsense")
        return super().build(plan)


class EngineRaisesUnderneath(ReferenceAdapter):
    def build(self, plan):
        try:
            json.loads("{nonsense")
        except ValueError as error:
            raise RuntimeError("the engine said no") from error
        return super().build(plan)


class EngineRaisesInAStep(ReferenceAdapter):
    class Pipeline(Inner):
        def run(self, mode, batch):
            self.inner.run(mode, batch)
            return torch.nn.functional.linear(torch.zeros(math.floor(2.0)), torch.zeros(3, 3))

    def build(self, plan):
        return self.Pipeline(super().build(plan))
