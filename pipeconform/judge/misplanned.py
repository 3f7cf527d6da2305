"""Judgement of plans that are wrong on purpose, or differ between ranks (ERR-8, ERR-9 and ERR-19).

An implementation that promises an error (`MistakeKind.PLAN`, ``NEIGHBOURS``, ``TABLE``) must raise it on every rank of
the pipeline. Without a promise, no rank may die or hang, and a plan that no rank refuses must give right values. The
values of the plan of *any* rank are right: an engine may use the plan of one rank for all, ignore what a user
declares, or run more stages than the schedule's name allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeconform.case.misplans import NO_COMPUTATION, UNKNOWN_SCHEDULE, HowPlanned, Misplan
from pipeconform.case.planned import right_cases
from pipeconform.judge import forward, training
from pipeconform.judge.aftermath import Aftermath, deaths_and_hangs, outcome_of, raised_by
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.wording import names_stage
from pipeconform.observe.observation import Failed

__all__ = ["plans_are_refused"]


def plans_are_refused(aftermath: Aftermath) -> Iterator[Outcome]:
    """Every rank raises the promised error, which says what is wrong; without a promise, right values or any error."""
    aftermath.gauge.count(len(aftermath.verdicts))
    ended = list(deaths_and_hangs(aftermath))
    if ended:
        yield from ended
        return
    misplan = aftermath.case.world.misplan
    assert misplan is not None
    promised = aftermath.errors.promised(misplan.kind)
    found = _kept(aftermath, misplan, promised) if promised else _unnoticed(aftermath, misplan)
    for finding in found:
        yield outcome_of(aftermath, Status.FAILED, finding)
        return


_PLACED_OTHERWISE: tuple[HowPlanned, ...] = ("remainder", "single", "schedule", "stages")
"""What may lead to another placement."""


def _unnoticed(aftermath: Aftermath, misplan: Misplan) -> Iterator[Finding]:
    """If no rank raised, the values must be those of a plan that some rank was given."""
    if aftermath.failed:
        return
    wrong = []
    for case in right_cases(aftermath.case):
        found = list(_wrong_values(aftermath.against(case), misplan))
        if not found:
            return
        wrong.append(found[0])
    text = f"no rank raised, although {misplan.in_words()}, and the result is wrong: {wrong[0].message}"
    yield Finding(kind=f"{misplan.how}: silent wrong result", message=text, step=wrong[0].step)


def _wrong_values(evidence: Evidence, misplan: Misplan) -> Iterator[Finding]:
    """What is wrong, as far as values say anything.

    An engine that places stages itself may have placed them, by a wrong plan, on ranks that were given other weights
    and data than those of their stages, as every rank is for what it does not own.
    """
    claim = evidence.capabilities.schedule(evidence.case.schedule)
    if claim is not None and not claim.takes_placement and misplan.how in _PLACED_OTHERWISE:
        return
    yield from forward.outputs_are_right(evidence)
    yield from training.losses_and_gradients_are_right(evidence)


def _kept(aftermath: Aftermath, misplan: Misplan, promised: tuple[str, ...]) -> Iterator[Finding]:
    names = " or ".join(promised)

    def finding(kind: str, text: str, rank: int | None = None, *, below: str = "") -> Finding:
        return Finding(
            kind=f"{misplan.how}: {kind}",
            message=f"{misplan.in_words()}; {text}; promised: {names}{below}",
            rank=rank,
        )

    if not aftermath.failed:
        yield finding("accepted", "no rank raised")
        return
    for rank in aftermath.case.world.pipeline_ranks:
        failed = aftermath.failed.get(rank)
        if failed is None:
            others = ", ".join(map(str, sorted(aftermath.failed)))
            yield finding("not on every rank", f"rank {others} raised, rank {rank} did not", rank)
            return
        said = f"rank {rank} raised {failed.type}: {failed.message.strip()}"
        if not failed.is_one_of(promised):
            yield finding(f"raised {failed.type}", said, rank, below=raised_by(rank, failed))
            return
        for kind, text in _lacking(aftermath, misplan, failed):
            yield finding(kind, f"{said}; it does not {text}", rank, below=raised_by(rank, failed))
            return


def _lacking(aftermath: Aftermath, misplan: Misplan, failed: Failed) -> Iterator[tuple[str, str]]:
    """What an error message lacks: a short name, and the words that follow "it does not"."""
    case, text = aftermath.case, failed.text
    p, v, m = case.num_ranks, case.stages_per_rank, case.trains[0].num_microbatches
    if misplan.how in ("shape", "dtype"):
        if failed.step is not None:
            yield "too late", f"come while the pipeline is built, but in step {failed.step}"
        for stage in (misplan.stage, misplan.stage + 1):
            if not names_stage(text, stage):
                yield "stage not named", f"name stage {stage}"
        return
    cell = (
        rf"(\b{misplan.stage}[A-Z]+{misplan.number}\b)|stage {misplan.stage}\D.*microbatch {misplan.number}\b"
    )
    wanted: dict[str, tuple[str, ...]] = {
        "remainder": (r"\bstages?\b", rf"\b{p * v + 1}\b", rf"\b{p}\b"),
        "single": (r"\bstages?\b", re.escape(case.schedule)),
        "schedule": (re.escape(UNKNOWN_SCHEDULE),),
        "stages": (r"\bstages?\b", rf"\b{p * v}\b", rf"\b{p * (v + 1)}\b"),
        "microbatches": (r"\b(micro[ _-]?batch(es)?|chunks?)\b", rf"\b{m}\b", rf"\b{misplan.number}\b"),
        "metadata": (r"\b(metadata|declare[sd]?|boundar(y|ies)|shapes?)\b", rf"\b{misplan.rank}\b"),
        "other microbatch": (r"\bmicro[ _-]?batch", rf"\D{m}\b"),
        "no computation": (NO_COMPUTATION,),
        "circle": (r"\b(waits?|deadlock\w*|circle|cycle|cannot start)\b",),
        "no line": (r"\branks?\b",),
        "lines exchanged": (r"\branks?\b",),
    }
    for pattern in wanted.get(misplan.how, (cell,)):
        if not re.search(pattern, text, re.IGNORECASE):
            plain = pattern.replace("\\b", "").replace("\\", "")
            yield "not clear", f"name {plain}"
