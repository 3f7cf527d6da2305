"""What ran and in which order, compared with what was named and declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipeconform.adapter import Placement, ScheduleClaim
from pipeconform.case.case import Eval, Train
from pipeconform.errors import BadTableError
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.named import accepted, expected_order, in_pair_order
from pipeconform.judge.timeline import Executed
from pipeconform.schedule import Action, Family, Kind, Rule, Table, differences, from_csv, verify
from pipeconform.schedule.families import Size

__all__ = [
    "bounds_of",
    "counted_once",
    "declared_in_flight",
    "departures",
    "is_declared_for",
    "is_named",
    "most_in_flight",
    "named_runs",
    "otherwise",
    "possible_order",
    "read_table",
    "size_of",
    "undeclared",
]

_BACKWARD = (Kind.B, Kind.I, Kind.W)


def is_named(claim: ScheduleClaim, *, declared: bool = False) -> bool:
    """Whether a claim names a family whose order can be compared with the contract's stages.

    `declared`: in a table that the implementation declares. Two-direction families' tables have other stages.
    """
    placements = (Placement.LOOP, Placement.V, *(() if declared else (Placement.MIRROR,)))
    return claim.family is not None and claim.placement in placements


def size_of(evidence: Evidence, num_microbatches: int) -> Size:
    """The size of a named schedule's table; with two directions, a rank has twice as many stages as the case says."""
    case = evidence.case
    claim = evidence.capabilities.schedule(case.schedule)
    directions = 2 if claim is not None and claim.placement is Placement.MIRROR else 1
    return Size(case.num_ranks, directions * case.stages_per_rank, num_microbatches)


def counted_once(evidence: Evidence, step: int, ranks: tuple[Executed, ...]) -> Iterator[Finding]:
    """Over all ranks, each (stage, microbatch) has one F and, in training, one B or one I and one W."""
    trains = isinstance(evidence.case.program[step], Train)
    counts = Counter((a.stage, a.kind, a.microbatch) for one in ranks for a in one.actions)
    parts = {key: part for one in ranks for key, part in one.parts.items()}
    for s in range(evidence.case.num_stages):
        owner = next((one for one in ranks if one.pipeline_rank in evidence.placement[s]), None)
        for k in range(len(evidence.sizes(step))):
            evidence.compared()
            f, b, i, w = (counts[s, kind, k] for kind in (Kind.F, *_BACKWARD))
            for kind, text, alike in _miscounts(f, b, i, w, trains=trains and bool(parts.get((s, k), "IW"))):
                yield Finding(
                    kind=kind,
                    message=f"stage {s}, microbatch {k}: {text}",
                    step=step,
                    rank=None if owner is None else owner.rank,
                    stage=s,
                    microbatch=k,
                    position=None if owner is None else _one_too_many(owner.actions, s, k, alike),
                )
    for one in ranks:
        for s, position in one.strangers:
            text = f"the forward of stage {s} after {position} computations got the inputs of no microbatch"
            yield Finding(kind="a forward of no microbatch", message=text, step=step, rank=one.rank, stage=s)
        for s in one.stale:
            text = f"a backward of stage {s} ran in the graph of an earlier step's forward"
            yield Finding(kind="a backward of another step", message=text, step=step, rank=one.rank, stage=s)


def _miscounts(f: int, b: int, i: int, w: int, *, trains: bool) -> Iterator[tuple[str, str, str]]:
    """What is wrong with these counts, in words, and the kinds that occur too often (empty if one is missing)."""
    if f != 1:
        yield "no F" if f == 0 else "several F", f"its forward ran {f} times", "F" if f else ""
    if not trains:
        if b + i + w:
            yield "a backward where none is due", "it has a backward although none is due", "BIW"
        return
    if b + i == 0:
        yield "no B or I", "no gradient of its inputs was computed", ""
    if b + i > 1:
        yield "several B or I", f"the gradient of its inputs was computed {b + i} times", "BI"
    if b + w == 0:
        yield "no W", "it has an I and no W: its weight gradient is left over", ""
    if b + w > 1:
        yield "several W", f"the gradient of its weights was computed {b + w} times", "BW"


def _one_too_many(actions: Sequence[Action], s: int, k: int, alike: str) -> int | None:
    """The second computation of these kinds (the first backward, where none is due), or the end if one is missing."""
    found = [
        n for n, one in enumerate(actions) if (one.stage, one.microbatch) == (s, k) and one.kind.name in alike
    ]
    if not alike:
        return len(actions)
    allowed = 0 if alike == "BIW" else 1
    return found[allowed] if len(found) > allowed else None


def possible_order(one: Executed, *, step: int) -> Iterator[Finding]:
    """On one rank, F runs before B or I, I before W, and a stage after the one it needs."""
    first: dict[tuple[int, Kind, int | None], int] = {}
    for position, action in enumerate(one.actions):
        first.setdefault((action.stage, action.kind, action.microbatch), position)
    for action in dict.fromkeys(one.actions):
        s, kind, k = action.stage, action.kind, action.microbatch
        for before in _needs(s, kind, k):
            if first.get(before, -1) > first[s, kind, k]:
                told = f"{action} ran before {Action(*before)}, whose result it needs"
                yield Finding(
                    kind=f"{kind.name} before {before[1].name}",
                    message=told,
                    step=step,
                    rank=one.rank,
                    stage=s,
                    microbatch=k,
                    position=first[s, kind, k],
                )


def _needs(s: int, kind: Kind, k: int | None) -> tuple[tuple[int, Kind, int | None], ...]:
    match kind:
        case Kind.F:
            return ((s - 1, Kind.F, k),)
        case Kind.W:
            return ((s, Kind.I, k), (s, Kind.F, k))
    return ((s, Kind.F, k), (s + 1, Kind.B, k), (s + 1, Kind.I, k))


def departures(step: int, ranks: tuple[Executed, ...], family: Family, size: Size) -> Iterator[Finding]:
    """Ranks whose order differs from a family's table in more than its definition leaves free."""
    p, v, m = size
    table = family.generate(num_ranks=p, stages_per_rank=v, num_microbatches=m)
    due = expected_order(table, ranks)
    for one in ranks:
        mine = in_pair_order(one.actions, due[one.pipeline_rank])
        want = [action for action, _ in due[one.pipeline_rank]]
        # an evaluation's name only promises the order of each stage: how a rank's stages take turns is free
        stages = sorted({a.stage for a in (*mine, *want)}) if family.forward_only else [None]
        for s in stages:
            shown = [n for n, a in enumerate(mine) if s in (None, a.stage)]
            found = _difference(
                [mine[n] for n in shown],
                [a for a in want if s in (None, a.stage)],
                free_backward_order=family.free_backward_order,
            )
            if found is not None:
                text, n = found
                told = f"pipeline rank {one.pipeline_rank} does not run {family.title}: {text}"
                position = shown[n] if n < len(shown) else len(mine)
                yield Finding(
                    kind="not the named order", message=told, step=step, rank=one.rank, position=position
                )
                break


def _difference(
    mine: Sequence[Action], want: Sequence[Action], *, free_backward_order: bool = False
) -> tuple[str, int] | None:
    """The first difference of two lists, in words, and its index in `mine`; None if they are equal."""
    tables = [_table([actions]) for actions in (mine, want)]
    for violation in differences(tables[0], expected=tables[1], free_backward_order=free_backward_order):
        position = violation.rows[0] if violation.rows else len(mine)
        return violation.message.removeprefix("rank 0, "), position
    return None


def _table(ranks: Iterable[Iterable[Action]]) -> Table:
    """A table for comparison only, whose placement means nothing."""
    return Table.build(list(ranks), placement=(0,), num_microbatches=1)


def most_in_flight(
    actions: Iterable[Action], parts: Mapping[tuple[int, int], str], *, until: Kind
) -> tuple[int, Action | None]:
    """The most (stage, microbatch) pairs held at a time between F and `until` (I or W), and the F that made it so.

    A pair is not counted if its stage does not have the part that would free it.
    """
    held = most = 0
    after: Action | None = None
    for action in actions:
        if until.name not in parts.get((action.stage, action.microbatch or 0), "IW"):
            continue
        if action.kind is Kind.F:
            held += 1
            if held > most:
                most, after = held, action
        elif action.kind in (Kind.B, until):
            held -= 1
    return most, after


def bounds_of(families: list[Family], rank: int, size: Size) -> Iterator[tuple[Kind, int]]:
    """How many forwards a rank may hold up to the input part and up to the weight part."""
    yield Kind.I, max(family.in_flight_input(rank, size) for family in families)
    yield Kind.W, max(family.in_flight_weight(rank, size) for family in families)


def declared_in_flight(evidence: Evidence) -> Iterator[Finding]:
    """Findings where the declared table lets a rank hold more than the named schedule's bound."""
    for step, size, families in named_runs(evidence):
        for one in evidence.members:
            table, _ = read_table(evidence, one.table)
            if table is None or table.num_ranks != size.num_ranks or not is_declared_for(evidence, step):
                continue
            evidence.compared(size.num_ranks)
            bounds = [dict(bounds_of(families, rank, size)) for rank in range(size.num_ranks)]
            violations = verify(
                table,
                max_in_flight_input=[bound[Kind.I] for bound in bounds],
                max_in_flight_weight=[bound[Kind.W] for bound in bounds],
            )
            for violation in violations:
                if violation.rule is Rule.IN_FLIGHT:
                    text = f"in the declared table, {violation.message}"
                    yield Finding(kind="too many in flight, declared", message=text, rank=one.rank)
            return


def named_runs(evidence: Evidence) -> Iterator[tuple[int, Size, list[Family]]]:
    """The runs to which the claim's name applies, with their size and the families that satisfy the name."""
    case = evidence.case
    claim = evidence.capabilities.schedule(case.schedule)
    assert claim is not None
    assert claim.family is not None
    kind = Train if claim.trains else Eval
    for expected in evidence.runs(kind):
        size = size_of(evidence, len(evidence.sizes(expected.step)))
        families = [family for family in accepted(claim.family) if family.refusal(size) is None]
        if families:
            yield expected.step, size, families


def is_declared_for(evidence: Evidence, step: int) -> bool:
    """Whether the declared table, which has the m of the first run, also applies to this run."""
    first = evidence.case.runs[0]
    return len(evidence.sizes(step)) == first.num_microbatches


def read_table(evidence: Evidence, text: str | None) -> tuple[Table | None, str]:
    """A declared table, or None and the reason why it cannot be read."""
    if text is None:
        return None, "table() returned None although the schedule trains"
    case = evidence.case
    try:
        return from_csv(text, name="the declared table", num_microbatches=case.runs[0].num_microbatches), ""
    except BadTableError as error:
        return None, str(error)


def undeclared(table: Table, step: int, ranks: tuple[Executed, ...]) -> Iterator[Finding]:
    """Findings where ranks compute something other than the declared table."""
    for one, text, n in otherwise(table, ranks):
        told = f"pipeline rank {one.pipeline_rank} runs other computations than declared: {text}"
        yield Finding(kind="declared and executed differ", message=told, step=step, rank=one.rank, position=n)


def otherwise(table: Table, ranks: tuple[Executed, ...]) -> Iterator[tuple[Executed, str, int]]:
    """The ranks that compute something other than their line of a table, with the first difference and its place."""
    due = expected_order(table, ranks)
    for one in ranks:
        want = due[one.pipeline_rank]
        found = _difference(in_pair_order(one.actions, want), [action for action, _ in want])
        if found is not None:
            yield one, *found
