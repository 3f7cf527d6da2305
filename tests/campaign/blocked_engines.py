"""Engines with one defect each that several requirements see."""

from __future__ import annotations

import re

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Mode, StepResult


class _UndividedPipeline(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        before = {id(p): None if p.grad is None else p.grad.clone() for p in self._trained()}
        result = super().run(mode, batch)
        if mode is Mode.TRAIN and self.plan.loss.reduction == "mean":
            for parameter in self._trained():
                if parameter.grad is not None:
                    old = before[id(parameter)]
                    own = parameter.grad if old is None else parameter.grad - old
                    parameter.grad = own * 3 if old is None else old + own * 3
        return result

    def _trained(self):
        return [p for module in self.modules.values() for p in module.parameters() if p.requires_grad]


class Undivided(ReferenceAdapter):
    """Every gradient is three times what it should be."""

    pipeline = _UndividedPipeline


class _NonsensePipeline(ReferencePipeline):
    def table(self) -> str | None:
        text = super().table()
        return None if text is None else re.sub(r"(\d+[A-Z])0", r"\g<1>9", text)


class DeclaresNonsense(ReferenceAdapter):
    """The declared table has a tenth microbatch instead of the first."""

    pipeline = _NonsensePipeline
