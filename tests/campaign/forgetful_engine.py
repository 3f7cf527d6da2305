"""An engine that forgets the loss of every step's first microbatch: it gives no gradient."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline
from pipeconform.reference_impl.runtime import Work
from torch import Tensor

from pipeconform.adapter import Batch, Mode


class _ForgetfulPipeline(ReferencePipeline):
    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work, calls = super().make_work(mode, batch), itertools.count()
        loss = work.loss
        if loss is None:
            return work

        def forgetful(output: Any, target: Any) -> Tensor:
            return loss(output, target) * (0.0 if next(calls) == 0 else 1.0)

        return replace(work, loss=forgetful)


class Forgets(ReferenceAdapter):
    """The first microbatch does not count."""

    pipeline = _ForgetfulPipeline
