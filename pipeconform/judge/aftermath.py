"""Judgement of chapter ERR: how the ranks ended after a mistake that a case makes on purpose.

An implementation must keep what it promises (`ErrorContract`): which rank raises which error, and what its message
names. Otherwise it is enough that no rank dies or hangs, and that a mistake which no rank refuses gives what the model
itself gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pipeconform.adapter import ErrorContract, MistakeKind
from pipeconform.bounds.gauge import Gauge
from pipeconform.case.case import Case, Train
from pipeconform.case.mistakes import Mistake
from pipeconform.judge import forward, training, wording
from pipeconform.judge.data_parallel import replicas_of
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.observe.observation import WAITS_FOR_OTHERS, Failed
from pipeconform.ranks.frames import raised_at
from pipeconform.ranks.verdict import Cause, Died, Raised, Returned, Stuck, VerdictVector

__all__ = [
    "Aftermath",
    "answers_are_right",
    "deaths_and_hangs",
    "done_wrong",
    "is_due",
    "outcome_of",
    "worded",
]

_EVERYWHERE = ("batch", "source", "mode")
"""Mistakes that show on every rank."""
_LEARNT = frozenset(
    {
        MistakeKind.INPUT_SHAPE,
        MistakeKind.INPUT_DTYPE,
        MistakeKind.OUTPUT_SHAPE,
        MistakeKind.OUTPUT_DTYPE,
        MistakeKind.ARITY,
    }
)
"""What is wrong only in comparison with an earlier step or another microbatch."""
_BROADCAST = frozenset({MistakeKind.INPUT_SHAPE, MistakeKind.OUTPUT_SHAPE, MistakeKind.BATCH})
"""Mistakes whose output the loss may broadcast against its target. The oracle computes the loss by microbatch, and a
loss over the merged output is then another number."""


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """One execution of a case that makes a mistake on purpose."""

    case: Case
    errors: ErrorContract
    verdicts: VerdictVector
    failed: Mapping[int, Failed]
    """The error of each rank that failed; other ranks returned, died or are stuck, as their verdicts say."""
    evidence: Evidence | None
    """What the ranks showed, with the case without its mistakes as reference; None unless every rank answered."""
    as_mistaken: Callable[[], Evidence]
    """The same, with what the model itself does with the mistake as reference."""
    against: Callable[[Case], Evidence]
    """The same, with another case as reference."""
    gauge: Gauge = field(default_factory=Gauge, compare=False)
    """Counts the ends of ranks, the errors and the values that were looked at."""

    @property
    def ends(self) -> VerdictVector:
        """The verdicts, in which a rank that failed counts as one that raised."""
        ends = [
            Raised(
                type=f.type,
                message=f.message,
                causes=tuple(Cause(*cause) for cause in f.causes),
                after=v.after,
            )
            if isinstance(v, Returned) and (f := self.failed.get(rank)) is not None
            else v
            for rank, v in enumerate(self.verdicts)
        ]
        return VerdictVector(tuple(ends))

    def mistake(self) -> tuple[int, Mistake]:
        """The first step of the program that has a mistake, and the mistake."""
        return next(
            (index, step.mistake)
            for index, step in enumerate(self.case.program)
            if isinstance(step, Train) and step.mistake is not None
        )

    def owners(self, mistake: Mistake) -> frozenset[int]:
        """The ranks of the world on which a mistake shows first."""
        assert self.evidence is not None
        placement, pipelines = self.evidence.placement, self.case.world.pipelines
        if mistake.where in _EVERYWHERE:
            return frozenset(rank for ranks in pipelines for rank in ranks)
        stage = {"input": 0, "loss": len(placement) - 1}.get(mistake.where, mistake.stage)
        return frozenset(ranks[position] for ranks in pipelines for position in placement[stage])


def answers_are_right(aftermath: Aftermath) -> Iterator[Outcome]:
    """No rank dies or hangs, the implementation keeps its promises, and nothing is silently wrong (ERR-1 to 10)."""
    aftermath.gauge.count(len(aftermath.verdicts))
    ended = list(deaths_and_hangs(aftermath))
    if ended:
        yield from ended
        return
    for finding in _answers(aftermath):
        yield outcome_of(aftermath, Status.FAILED, finding)


def outcome_of(aftermath: Aftermath, status: Status, finding: Finding) -> Outcome:
    """A finding together with how every rank ended."""
    return Outcome(status, finding, verdicts=aftermath.ends.describe())


def deaths_and_hangs(aftermath: Aftermath) -> Iterator[Outcome]:
    """The first rank that died, that failed in a case without the mistake, or that waits forever."""
    ends = aftermath.ends
    for rank, one in enumerate(ends):
        if isinstance(one, Died):
            text = f"rank {rank} died ({one.how}), when {done_wrong(aftermath)}\n{ends.describe()}"
            yield outcome_of(
                aftermath, Status.CRASHED, Finding(kind=f"died: {one.how}", message=text, rank=rank)
            )
            return
    for rank, one in enumerate(ends):
        if isinstance(one, Raised) and rank not in aftermath.failed:
            # it failed in the case without the mistake, which is executed afterwards
            text = f"after {done_wrong(aftermath)}, a new pipeline fails: {one.type}: {one.message}\n{ends.describe()}"
            kind = f"after an error: raised {one.type}"
            yield outcome_of(aftermath, Status.ERROR, Finding(kind=kind, message=text, rank=rank))
            return
    stuck = {rank: one for rank, one in enumerate(ends) if isinstance(one, Stuck)}
    in_harness = {rank for rank, one in stuck.items() if WAITS_FOR_OTHERS in one.doing}
    raised = {rank for rank in in_harness if "raised " in stuck[rank].doing}
    for rank, one in stuck.items():
        if rank not in in_harness or len(in_harness) == len(stuck):
            others = sorted({*aftermath.failed, *raised})
            first = f"rank {', '.join(map(str, others))} raised" if others else "no rank raised"
            text = f"rank {rank} waits forever, when {done_wrong(aftermath)} and {first}: {one.why}\n{ends.describe()}"
            kind = "others left waiting" if others else "hang"
            finding = Finding(kind=kind, message=f"{text}\n{one.stack}".rstrip(), rank=rank)
            yield outcome_of(aftermath, Status.HUNG, finding)
            return


def done_wrong(aftermath: Aftermath) -> str:
    """The mistake that the case makes, in words."""
    if aftermath.case.world.misplan is not None:
        return aftermath.case.world.misplan.in_words()
    step, mistake = aftermath.mistake()
    return f"in step {step} {mistake.in_words()}"


def _answers(aftermath: Aftermath) -> Iterator[Finding]:
    step, mistake = aftermath.mistake()
    promised = aftermath.errors.promised(mistake.kind) if is_due(aftermath.case, step, mistake) else ()
    if promised:
        yield from _kept(aftermath, step, mistake, promised)
    elif not aftermath.failed:
        yield from _unnoticed(aftermath, step, mistake)


def is_due(case: Case, step: int, mistake: Mistake) -> bool:
    """Whether the promised error is due: some mistakes show only beside an earlier step or another microbatch."""
    first = next(index for index, one in enumerate(case.program) if isinstance(one, Train))
    return step > first or mistake.microbatch is not None or mistake.kind not in _LEARNT


def _unnoticed(aftermath: Aftermath, step: int, mistake: Mistake) -> Iterator[Finding]:
    """If no rank raised, the result is right if the model itself gives the same."""
    evidence = aftermath.as_mistaken()
    if evidence.expected.failed is not None:
        text = f"no rank raised, although {done_wrong(aftermath)}; the model itself raises {evidence.expected.failed}"
        yield Finding(kind=f"{mistake.kind}: accepted", message=text, step=step, stage=mistake.stage)
        return
    alone = [evidence] if aftermath.case.world.replicas is None else list(replicas_of(evidence))
    wrong = [*itertools.chain.from_iterable(map(forward.outputs_are_right, alone))]
    if evidence.capabilities.loss_over == "microbatch" or mistake.kind not in _BROADCAST:
        wrong += itertools.chain.from_iterable(map(training.losses_and_gradients_are_right, alone))
    for finding in wrong[:1]:
        text = f"no rank raised, although {done_wrong(aftermath)}, and the result is not the model's: {finding.message}"
        yield worded(finding, kind=f"{mistake.kind}: silent wrong result", message=text)


def _kept(aftermath: Aftermath, step: int, mistake: Mistake, promised: tuple[str, ...]) -> Iterator[Finding]:
    """Check the promised error, its rank and its message, then the errors of other ranks and what was sent before."""
    owners = aftermath.owners(mistake)
    mine = {rank: failed for rank, failed in aftermath.failed.items() if rank in owners}
    names = " or ".join(promised)

    def finding(kind: str, text: str, rank: int | None = None) -> Finding:
        text = f"{done_wrong(aftermath)}; {text}"
        return Finding(
            kind=f"{mistake.kind}: {kind}",
            message=text,
            step=step,
            rank=rank,
            stage=mistake.stage,
            microbatch=mistake.microbatch,
        )

    if not aftermath.failed:
        yield finding("accepted", f"no rank raised; promised: {names}")
        return
    if not mine:
        where = ", ".join(map(str, sorted(aftermath.failed)))
        due = ", ".join(map(str, sorted(owners)))
        yield finding(
            "wrong rank", f"rank {where} raised, but not rank {due}, where it happened; promised: {names}"
        )
        return
    for rank, failed in mine.items():
        said = f"rank {rank} raised {failed.type}: {failed.message.strip()}"
        if not failed.is_one_of(promised):
            yield finding(
                f"raised {failed.type}", f"{said}; promised: {names}{raised_by(rank, failed)}", rank
            )
            return
        lacking = wording.lacking(
            aftermath.case, step, mistake, failed, rank=rank, expected=_clean(aftermath)
        )
        if lacking is not None:
            yield finding(lacking.kind, f"{said}; it does not {lacking.text}{raised_by(rank, failed)}", rank)
            return
    yield from _of_others(aftermath, mistake, owners, finding)
    sent = wording.sent_wrongly(aftermath.evidence, step, mistake) if aftermath.evidence else None
    if sent is not None:
        yield finding("sent before", sent)


def _clean(aftermath: Aftermath) -> Evidence:
    assert aftermath.evidence is not None
    return aftermath.evidence


def _of_others(
    aftermath: Aftermath, mistake: Mistake, owners: frozenset[int], finding: Callable[..., Finding]
) -> Iterator[Finding]:
    """If promised, the errors of the other ranks name the stage from which the error came."""
    if not aftermath.errors.tells_others or mistake.where in ("input", *_EVERYWHERE):
        return
    stage = aftermath.case.num_stages - 1 if mistake.where == "loss" else mistake.stage
    for rank, failed in aftermath.failed.items():
        if rank not in owners and not wording.names_stage(failed.text, stage):
            said = f"rank {rank} raised {failed.type}: {failed.message.strip()}"
            said += f"; its message does not name stage {stage}{raised_by(rank, failed)}"
            yield finding("cause not told to others", said, rank)
            return


def raised_by(rank: int, failed: Failed) -> str:
    """Where an error was raised, on lines of its own below a message; empty if that is not known."""
    where = raised_at({rank: failed.frames})
    return f"\n{where}" if where else ""


def worded(finding: Finding, *, kind: str, message: str) -> Finding:
    """A finding with another kind and message."""
    return Finding(
        kind=kind,
        message=message,
        step=finding.step,
        rank=finding.rank,
        stage=finding.stage,
        microbatch=finding.microbatch,
        mismatch=finding.mismatch,
    )
