"""The reference with code that cases reach and code that they do not: for tests of ``run --coverage``."""

from __future__ import annotations

import threading

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Mode, StepResult


def usual(number: int) -> str:
    """What every step calls."""
    if number < 0:
        return "fewer than none"
    return "some"


def before_raising() -> str:
    """What is executed only in steps that raise."""
    return "due"


def before_hanging() -> str:
    """What is executed only in steps that do not end."""
    return "stuck"


def never() -> str:
    """What nothing calls."""
    return "never"


class Measured(ReferencePipeline):
    """Runs a function in each step."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run a step."""
        usual(batch.num_microbatches)
        return super().run(mode, batch)


class Adapter(ReferenceAdapter):
    """Builds such pipelines."""

    name = "measured"
    pipeline = Measured


class Raising(ReferencePipeline):
    """Raises in each step."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run no step."""
        raise ValueError(before_raising())


class Raises(ReferenceAdapter):
    """Builds pipelines that raise."""

    name = "raises"
    pipeline = Raising


class Hanging(ReferencePipeline):
    """Never ends a step."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run no step to its end."""
        before_hanging()
        threading.Event().wait()
        return super().run(mode, batch)


class Hangs(ReferenceAdapter):
    """Builds pipelines that hang."""

    name = "hangs"
    pipeline = Hanging
