"""What an implementation says about its schedule."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Train
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.named import accepted
from pipeconform.judge.schedules import is_declared_for, read_table, undeclared
from pipeconform.judge.tables import about_table, bubbles_too_large, judgeable_table, stuck_in
from pipeconform.judge.timeline import executed
from pipeconform.schedule import Rule, lower, to_csv, verify
from pipeconform.schedule.families import Size
from pipeconform.spec.catalogue import MUST, Promise

from ..promises import SCHEDULES, in_source


@requirement(
    "SCH-4",
    title="Bubble",
    level=MUST,
    about=(Focus.PLAIN,),
    trains=True,
    observe=TIMELINE,
    named=True,
    needs=(Feature.DECLARED_TABLE,),
    promise=SCHEDULES,
)
def the_declared_bubble_is_within_the_formula(evidence: Evidence) -> Iterator[Finding]:
    """The table that an implementation declares, simulated with free communication, leaves no rank idle for
    longer than the named schedule's published formula allows, for all costs of F, I and W for which the
    formula holds.

    A schedule is chosen for its bubble; an order that merely resembles it computes the right numbers and
    wastes the machine.
    """
    table = yield from judgeable_table(evidence)
    claim = evidence.capabilities.schedule(evidence.case.schedule)
    assert claim is not None
    assert claim.family is not None
    if table is None:
        return
    size = Size(
        evidence.case.num_ranks, evidence.case.stages_per_rank, evidence.case.runs[0].num_microbatches
    )
    stuck = [v for v in verify(table) if v.rule is Rule.DEADLOCK]
    if stuck:
        yield about_table("declared table cannot be run", stuck[0])
        return
    families = [family for family in accepted(claim.family) if family.refusal(size) is None]
    evidence.compared(len(families))
    yield from bubbles_too_large(table, families, size)


@requirement(
    "SCH-5",
    title="Freedom from deadlock",
    level=MUST,
    about=(Focus.PLAIN,),
    trains=True,
    observe=TIMELINE,
    needs=(Feature.DECLARED_TABLE,),
    promise=Promise(
        "MPI: A Message-Passing Interface Standard, version 4.0, section 3.5 (a program that relies on buffering is "
        "unsafe)",
        "https://www.mpi-forum.org/docs/mpi-4.0/mpi40-report.pdf",
    ),
)
def the_declared_table_cannot_deadlock(evidence: Evidence) -> Iterator[Finding]:
    """The table that an implementation declares, completed with sends and receives where it has none, runs to
    its end with buffered sends, with synchronous sends, and with synchronous sends served in order per pair
    of ranks.

    A program that runs on one backend because that backend buffers hangs on another, or with messages of
    another size.
    """
    table = yield from judgeable_table(evidence)
    if table is None:
        return
    evidence.compared()
    stuck = stuck_in(table) or ([] if table.has_communication else stuck_in(lower(table)))
    yield from (about_table(f"declared table: {violation.rule.value}", violation) for violation in stuck[:1])


@requirement(
    "SCH-8",
    title="What is declared is what runs",
    level=MUST,
    about=(Focus.PLAIN,),
    trains=True,
    observe=TIMELINE,
    needs=(Feature.DECLARED_TABLE,),
    promise=in_source(
        "torch.distributed.pipelining, pipeline_order and _dump_csv", "distributed/pipelining/schedules.py"
    ),
)
def the_declared_table_is_what_runs(evidence: Evidence) -> Iterator[Finding]:
    """The table that an implementation declares is the same on all ranks, can be read, parses back to itself
    when it is written again, and matches, computation by computation, what a training step executes.

    Tools that draw, simulate or verify a declared table are useful only if it is the one that runs.
    """
    texts = {one.rank: one.table for one in evidence.members}
    evidence.compared(len(texts))
    if len(set(texts.values())) > 1:
        ranks = ", ".join(str(rank) for rank, text in texts.items() if text != texts[min(texts)])
        told = f"rank {ranks} declares another table than rank {min(texts)}"
        yield Finding(kind="declared tables differ", message=told)
    for rank, text in texts.items():
        table, reason = read_table(evidence, text)
        if table is None:
            yield Finding(kind="declared table unreadable", message=reason, rank=rank)
            return
        if table.num_ranks != evidence.case.num_ranks:
            told = f"the declared table has {table.num_ranks} ranks instead of {evidence.case.num_ranks}"
            yield Finding(kind="declared table of another size", message=told, rank=rank)
            return
        if read_table(evidence, to_csv(table))[0] != table:
            yield Finding(
                kind="declared table does not parse back", message="written again, it differs", rank=rank
            )
        for expected in evidence.runs(Train):
            if is_declared_for(evidence, expected.step):
                ran = executed(evidence, expected.step)
                evidence.compared(len(ran))
                yield from undeclared(table, expected.step, ran)
        return
