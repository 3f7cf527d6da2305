"""docs/program-verdicts.md: for every violation, the verdicts of replay and of its exported program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from benchmarks.programs.outcomes import Outcome

__all__ = ["page"]

_FAULTS = "pipeconform.reference_impl.faults."


def page(outcomes: Mapping[str, Outcome], requirements: Iterable[str]) -> str:
    """The page; `requirements` are all that can be violated."""
    return "\n".join([*_head(outcomes, tuple(requirements)), *_rows(outcomes), ""])


def _head(outcomes: Mapping[str, Outcome], requirements: tuple[str, ...]) -> Iterator[str]:
    of_faults = [one for one in outcomes.values() if one.implementation.startswith(_FAULTS)]
    engines = sorted(
        {one.implementation for one in outcomes.values()} - {one.implementation for one in of_faults}
    )
    agreeing = sum(one.program == one.replay for one in outcomes.values())
    again = sum(one.program == "reproduced" for one in outcomes.values())
    mended = sum(one.mended == "met" for one in outcomes.values())
    missing = sorted(set(requirements) - {one.requirement for one in of_faults})
    yield "# The verdicts of exported programs"
    yield ""
    yield (
        "Written by `python -m benchmarks.programs`. A violation is written as two files (the adapter's source, and "
        "the judgement in an archive beside it). They are executed where pipeconform is not installed: once as they "
        "are, and once with an adapter that does the case right. For every requirement there is a fault of the "
        "reference, whose mended engine is the reference itself; for adapters of other engines there is the first "
        "violation of each requirement in a result, and the reference stands for the mended engine. Adapters whose "
        "engines violate nothing are used wrongly (`wrong_uses.py`), and stand for their own mended engine."
    )
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| programs | {len(outcomes)} |"
    yield f"| requirements with a program | {len({one.requirement for one in of_faults})} of {len(requirements)} |"
    if missing:
        yield f"| without | {', '.join(missing)} |"
    yield f"| adapters of other engines | {', '.join(f'`{one}`' for one in engines) or 'none'} |"
    yield f"| the program's verdict is that of `replay` | {agreeing} of {len(outcomes)} |"
    yield f"| reproduced by the program | {again} of {len(outcomes)} |"
    alone = sum(one.alone for one in outcomes.values())
    yield f"| in processes of their own; the others shared a process that had only the archive | {alone} |"
    kinds, seen = _kinds(outcomes.values()), _kinds(one for one in outcomes.values() if one.alone)
    yield f"| kinds, by chapter and by what is wrong, with one in processes of its own | {len(seen)} of {len(kinds)} |"
    yield f"| `NOT REPRODUCED` with the mended engine | {mended} of {len(outcomes)} |"
    yield ""


def _kinds(outcomes: Iterable[Outcome]) -> set[tuple[str, str]]:
    return {(one.requirement.partition("-")[0], one.status) for one in outcomes}


def _rows(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    yield "| requirement | violation | what it shows | replay | program | mended |"
    yield "|---|---|---|---|---|---|"

    def place(each: tuple[str, Outcome]) -> tuple[bool, str, int, str]:
        name, one = each
        chapter, _, number = one.requirement.partition("-")
        return one.as_it_should, chapter, int(number), name

    for name, one in sorted(outcomes.items(), key=place):
        words = one.verdicts if one.as_it_should else [f"**{word}**" for word in one.verdicts]
        signature = one.signature if len(one.signature) <= 60 else f"{one.signature[:60]}…"
        shown = f"{one.status}: {signature}".replace("|", "\\|").replace("<", "&lt;")
        yield f"| {one.requirement} | {name} | {shown} | {' | '.join(words)} |"
