"""A wrapper's result in words."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pipeconform.replication.case import WrapperCase
from pipeconform.replication.result import WrapperCell, WrapperResult
from pipeconform.spec.wrappers import wrapper_requirement

__all__ = ["case_text", "cell_text", "result_text"]

_WORDS = {
    "passed": "ok",
    "failed": "FAIL",
    "hung": "HUNG",
    "crashed": "DIED",
    "error": "ERR",
    "flaky": "FLKY",
}


def case_text(case: WrapperCase) -> str:
    """A case as JSON: what `pipeconform wrappers replay` reads."""
    return msgspec.json.encode(case).decode()


def cell_text(cell: WrapperCell) -> str:
    """What is wrong with a requirement, each kind with its smallest case."""
    return "\n".join(_lines(cell)) or cell.reason


def _lines(cell: WrapperCell) -> Iterator[str]:
    for one in cell.violations:
        sure = "" if one.confirmed else ", not every time"
        yield f"{one.id} {one.status}: {one.signature} ({one.occurrences} of {cell.judgements} cases{sure})"
        yield from (f"  {line}" for line in one.message.splitlines())
        yield f"  case: {case_text(one.case)}"
        yield f"  replay: {one.replay}"


def result_text(result: WrapperResult) -> str:
    """A line per requirement, what is violated below it, and the sums."""
    lines = [f"{result.implementation.name} {result.implementation.version}, chapter DPW"]
    for cell in result.cells:
        title = wrapper_requirement(cell.requirement).title
        note = cell.reason if cell.status == "not_claimed" else f"{cell.judgements} cases"
        lines.append(f"{_WORDS.get(cell.status, '-'):<5}{cell.requirement:<7}{title:<40}{note}".rstrip())
        lines += [f"     {line}" for line in _lines(cell)]
        lines += [f"     {cell.reason}"] if cell.status == "error" and cell.reason else []
    counts = {word: sum(cell.status == word for cell in result.cells) for word in ("passed", "not_claimed")}
    broken = len(result.cells) - sum(counts.values())
    lines.append(
        f"{counts['passed']} met, {broken} not met, {counts['not_claimed']} not claimed; "
        f"{result.executions} executions of {result.distinct_cases} cases"
    )
    return "\n".join(lines)
