"""What is compared to decide whether two violations have one cause: kind, place and factor."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeconform.case.case import Case
from pipeconform.report.result import Violation
from pipeconform.spec.precedence import fact_of_kind

__all__ = ["Traits", "factor_words", "traits_of"]

_OF_THE_REFERENCE = " times the reference's"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?$")
_STEP = re.compile(r"\bstep (\d+)")
_FIRST = re.compile(r"^rank +(\d+) .*<- first failure$", re.MULTILINE)
_CHAIN = re.compile(r"^ranks? ([\d, ]+) raised at\n((?:  .*\n?)+)", re.MULTILINE)
_FRAME = re.compile(r"^  (?! )(.+), line \d+, in (.+)$", re.MULTILINE)
_STACK = re.compile(r'File "([^"]*)", line \d+,? in (.+)')
_DIED_IN = re.compile(r"^rank +\d+  died +[^;]* in ([^:;]+):\d+ (\S+).*<- first failure$", re.MULTILINE)
_WAITING = re.compile(r"distributed_c10d|c10d_logger|threading|/autograd/|torch/_ops|torch/nn/modules/module")
"""Files in which every rank waits, whatever it waits for."""

_OF_A_MISTAKE = re.compile(r"^[a-z_]+: ")
"""How the signature begins of an error that a mistake of the user's must raise: with the mistake."""

_MOST_POWER = 3
_CLOSE = 1e-4
_TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class Traits:
    """A violation without what differs between schedules and cases."""

    kind: tuple[str, str]
    """Status and signature."""
    place: str
    """The innermost frame of what raised, hung or died, without its line; for a wrong value where it begins; empty if
    unknown."""
    raised: bool
    """Whether the place is that of an error, of whatever status."""
    factor: frozenset[str]
    """What the ratio to the reference's value may be, such as ``1/m`` or ``1/2``; empty if there is no ratio."""
    likeness: str
    """Another relation to the right value, without numbers; empty if there is none."""
    fact: str
    """What the violation is about; see `pipeconform.spec.precedence`."""

    def is_like(self, other: Traits) -> bool:
        """Whether kind, place and factor say that violations of two requirements have one cause."""
        if self.kind != other.kind or not self.place or self.place != other.place:
            return False
        if self.raised or self.kind[0] != "failed":
            return True
        return bool(self.factor & other.factor) or bool(self.likeness and self.likeness == other.likeness)


def traits_of(violation: Violation) -> Traits:
    """The traits of a violation."""
    first = None if violation.localisation is None else violation.localisation.first
    likeness = "" if first is None else first.likeness
    ratio = _ratio(likeness) or _ratio(violation.message)
    raised = _raised_in(violation) if violation.status in ("error", "failed") else ""
    signature = violation.signature
    return Traits(
        # the same check may answer to several mistakes
        kind=(violation.status, _OF_A_MISTAKE.sub("", signature) if raised else signature),
        place=raised or _place(violation),
        raised=bool(raised),
        factor=frozenset(_factors(float(ratio), violation)) if ratio else frozenset(),
        likeness="" if _ratio(likeness) else re.sub(r"\d+", "#", likeness),
        fact=fact_of_kind(signature, ended=violation.status in ("error", "hung", "crashed")),
    )


def _ratio(text: str) -> str:
    """The number before the words "times the reference's"; empty if there is none."""
    before, _, _ = text.partition(_OF_THE_REFERENCE)
    found = _NUMBER.search(before[-40:]) if len(before) < len(text) else None
    return found[0] if found else ""


def factor_words(factor: frozenset[str]) -> str:
    """The most telling of the possible factors: one in m before one in p before a number; empty if there is none."""
    return min(factor, key=lambda one: (one[-1].isdigit() and "^" not in one, len(one), one), default="")


def _place(violation: Violation) -> str:
    if violation.status == "hung":
        return next((place for one in violation.places if (place := _waits_in(one.stack))), "")
    if violation.status == "crashed":
        died = _DIED_IN.search(violation.verdicts)
        return f"{died[1]}: {died[2]}" if died else ""
    first = None if violation.localisation is None else violation.localisation.first
    return "" if first is None else first.direction


def _waits_in(stack: str) -> str:
    """The innermost frame that says what a stuck rank was doing; a stack has it first."""
    main = stack.rpartition("Current thread")[2]
    frames = [(file, function) for file, function in _STACK.findall(main) if not _WAITING.search(file)]
    return f"{os.path.basename(frames[0][0])}: {frames[0][1].strip()}" if frames else ""


def _raised_in(violation: Violation) -> str:
    """The innermost frame of the rank that failed first."""
    first = _FIRST.search(violation.verdicts)
    for ranks, chain in _CHAIN.findall(violation.message):
        if first is None or first[1] in re.split(r",\s*", ranks.strip()):
            frames = _FRAME.findall(chain)
            return f"{frames[-1][0]}: {frames[-1][1]}" if frames else ""
    return ""


def _factors(ratio: float, violation: Violation) -> Iterator[str]:
    """The ratio as a number, and as a power of the case's m, p and number of replicas."""
    yield f"1/{1 / ratio:.4g}" if _TINY < abs(ratio) < 1 else f"{ratio:.4g}"
    case = violation.case
    if not isinstance(case, Case):
        return
    sizes = {"m": _microbatches(case, violation.where), "p": case.num_ranks}
    sizes["r"] = case.world.num_replicas
    for name, size in sizes.items():
        for power in range(1, _MOST_POWER + 1) if size > 1 else ():
            raised = name if power == 1 else f"{name}^{power}"
            if abs(ratio / size**power - 1) < _CLOSE:
                yield raised
            if abs(ratio * size**power - 1) < _CLOSE:
                yield f"1/{raised}"


def _microbatches(case: Case, where: str) -> int:
    """The m of the step that a violation names, or of the first one."""
    step = _STEP.search(where)
    program = case.program if step is None else case.program[int(step[1]) :]
    return next((m for one in program if (m := getattr(one, "num_microbatches", 0))), 1)
