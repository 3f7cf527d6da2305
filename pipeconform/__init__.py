"""pipeconform: a conformance suite for pipeline-parallel training in PyTorch.

The names below load on first use, so importing the package loads neither torch nor Hypothesis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeconform.adapter import (
        Adapter,
        Batch,
        Capabilities,
        Description,
        Feature,
        Pipeline,
        Plan,
        ScheduleClaim,
        StepResult,
    )
    from pipeconform.api import certify, judge_implementation, merge, verify
    from pipeconform.case.case import Case
    from pipeconform.errors import PipeconformError, Unsupported
    from pipeconform.gate.comparison import Comparison, compare
    from pipeconform.gate.comparison_text import render_comparison
    from pipeconform.gate.expectations import ExpectationsFile, read_expectations
    from pipeconform.gate.proposal import propose, write_proposal
    from pipeconform.ranks.on_ranks import run_on_ranks
    from pipeconform.report.result import Result, read_result

__all__ = [
    "Adapter",
    "Batch",
    "Capabilities",
    "Case",
    "Comparison",
    "Description",
    "ExpectationsFile",
    "Feature",
    "PipeconformError",
    "Pipeline",
    "Plan",
    "Result",
    "ScheduleClaim",
    "StepResult",
    "Unsupported",
    "__version__",
    "certify",
    "compare",
    "judge_implementation",
    "merge",
    "propose",
    "read_expectations",
    "read_result",
    "render_comparison",
    "run_on_ranks",
    "verify",
    "write_proposal",
]

__version__ = "0.1.0"

_HOMES = {
    "Case": "case.case",
    "Comparison": "gate.comparison",
    "ExpectationsFile": "gate.expectations",
    "PipeconformError": "errors",
    "Result": "report.result",
    "Unsupported": "errors",
    "certify": "api",
    "compare": "gate.comparison",
    "judge_implementation": "api",
    "merge": "api",
    "propose": "gate.proposal",
    "read_expectations": "gate.expectations",
    "read_result": "report.result",
    "render_comparison": "gate.comparison_text",
    "run_on_ranks": "ranks.on_ranks",
    "verify": "api",
    "write_proposal": "gate.proposal",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'adapter')}"), name)


def __dir__() -> list[str]:
    return __all__
