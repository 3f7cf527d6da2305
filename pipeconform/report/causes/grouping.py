"""Groups the violations of a result by what is behind them.

1. A blocked violation belongs to the cause of the violation that blocks it, as its control showed it.
2. Violations of one requirement with the same status, signature and factor have one cause, under all schedules; so
   have those under one schedule of which one is about what follows from the other, as wrong gradients do from wrong
   outputs.
3. Violations of different requirements have one cause if kind, place and factor agree, if both are about what is one
   requirement's business, or if both are known as the same finding. Violations that are known as different findings
   never have one cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeconform.report.causes.cause import Cause, Member, size_of
from pipeconform.report.causes.harm import harm_of
from pipeconform.report.causes.known import Known, entry_of, findings, known_for
from pipeconform.report.causes.traits import Traits, factor_words, traits_of
from pipeconform.report.result import SEVERITY, Cell, Result
from pipeconform.spec import Level, Requirement
from pipeconform.spec.precedence import FIRST, OWNERS, PLAINEST_OF_WRAPPERS, PRECEDENCE, THE_END, follows
from pipeconform.spec.wrappers import all_requirements

__all__ = ["causes_of", "grouped"]

_PLAIN = (*PRECEDENCE, PLAINEST_OF_WRAPPERS)
"""Requirements about the plainest cases. Of several violations with one cause, theirs says best what is wrong."""

_LEVELS = {level.value: index for index, level in enumerate(Level)}


def causes_of(result: Result, *, known: Sequence[Known] | None = None) -> tuple[Cause, ...]:
    """The causes of a result's violations, the most harmful first; those that are all expected come last.

    `known` lists findings that causes may be known as, by default those that the package has.
    """
    return grouped(result.cells, known=known_for(result.implementation.names, known))


def grouped(cells: Iterable[Cell], *, known: Sequence[Known] = ()) -> tuple[Cause, ...]:
    """The causes of these cells' violations, as in `causes_of`."""
    cells = tuple(cells)
    members = [Member(cell=cell, violation=one) for cell in cells for one in cell.violations]
    groups = _Groups(known)
    effects: list[tuple[Member, Member | None]] = []
    of: dict[str, list[Member]] = {}
    for member in members:
        of.setdefault(member.requirement, []).append(member)
    for member in members:
        blocker = _root(member, of)
        if blocker is member:
            groups.add(member)
        else:
            effects.append((member, blocker))
    groups.join()
    blocked: dict[int, list[Member]] = {}
    alone: dict[tuple[str, ...], list[Member]] = {}
    for member, blocker in effects:
        if blocker is None:
            control = member.violation.control
            assert control is not None, "a violation without a control is its own root"
            alone.setdefault((control.requirement, control.status, control.signature), []).append(member)
        else:
            blocked.setdefault(groups.number_of(blocker), []).append(member)
    places = _Places(judged=_judged(cells), schedules=tuple(dict.fromkeys(cell.schedule for cell in cells)))
    rows = {row.id: row for row in all_requirements()}
    found = [
        _cause(
            group.members,
            blocked.get(number, []),
            known=findings(group.known, known),
            places=places,
            rows=rows,
        )
        for number, group in groups.numbered()
    ]
    found += [
        _cause(
            [], several, requirement=name, known=_known_by_control(several, known), places=places, rows=rows
        )
        for (name, *_), several in alone.items()
    ]
    return tuple(sorted(found, key=lambda cause: _order(cause, rows)))


# -------------------------------------------------------------------------------------- who blocks


def _root(member: Member, of: Mapping[str, Sequence[Member]]) -> Member | None:
    """The violation that a member is an effect of; itself if it is none, None if the result does not have it."""
    seen, current = {id(member)}, member
    while current.violation.blocked_by:
        blocker = _blocker(current, of)
        if blocker is None or id(blocker) in seen:
            return None
        seen.add(id(blocker))
        current = blocker
    return current


def _blocker(member: Member, of: Mapping[str, Sequence[Member]]) -> Member | None:
    """The violation that a member's control shows; of the same schedule and variant if there is one."""
    control = member.violation.control
    assert control is not None, "only a violation with a control is blocked"

    def distance(other: Member) -> tuple[bool, ...]:
        shown = (other.violation.status, other.violation.signature) == (control.status, control.signature)
        here = (other.schedule, other.cell.variant) == (member.schedule, member.cell.variant)
        return (not shown, not here, other.violation.found_by != member.violation.id)

    return min(of.get(control.requirement, ()), key=distance, default=None)


def _known_by_control(members: Sequence[Member], known: Sequence[Known]) -> tuple[Known, ...]:
    """The finding that describes what the controls of these violations showed."""
    found = (
        entry
        for one in members
        for entry in known
        if (control := one.violation.control) is not None
        and entry.describes(
            control.requirement, schedule=one.schedule, status=control.status, signature=control.signature
        )
    )
    entry = next(found, None)
    return () if entry is None else findings([entry], known)


# --------------------------------------------------------------------------------- what is alike


class _Group:
    """Violations that accuse, and have one cause."""

    def __init__(self, member: Member, traits: Traits, known: Known | None) -> None:
        self.members = [member]
        self.expected = bool(member.violation.expected)
        self.known = [] if known is None else [known]
        self.factor = traits.factor
        self.likes = [traits]
        self.facts = {(member.requirement, member.schedule, traits.fact)}

    def takes(self, traits: Traits) -> bool:
        """Whether a violation of the same requirement, status, signature and finding has the same factor."""
        return not traits.factor or not self.factor or bool(traits.factor & self.factor)

    def add(self, member: Member, traits: Traits) -> None:
        """Add a violation that it takes."""
        self.members.append(member)
        self.facts.add((member.requirement, member.schedule, traits.fact))
        self.factor = (self.factor & traits.factor) or self.factor or traits.factor
        if traits.place and traits not in self.likes:
            self.likes.append(traits)

    def is_one_with(self, other: _Group) -> bool:
        """Whether both have one cause."""
        if self.expected is not other.expected:
            return False
        if self.known and other.known:
            return self.known[0].root == other.known[0].root
        if not (self.known or other.known) and (self._sees_what(other) or self._is_about_the_same_as(other)):
            return True
        if self.factor and other.factor and not self.factor & other.factor:
            return False
        return any(mine.is_like(theirs) for mine in self.likes for theirs in other.likes)

    def _sees_what(self, other: _Group) -> bool:
        """Whether both see, under one schedule, what is one requirement's business."""
        mine, theirs = (
            {(schedule, fact) for _, schedule, fact in group.facts if fact in OWNERS}
            for group in (self, other)
        )
        return bool(mine & theirs)

    def _is_about_the_same_as(self, other: _Group) -> bool:
        """Whether one requirement sees in both, under one schedule, what is the same or follows from it.

        Ranks may end for any reason: that they do is not the same.
        """
        named = [{one for one in group.factor if one[-1].isalpha() or "^" in one} for group in (self, other)]
        if all(named) and not named[0] & named[1]:
            return False
        return any(
            mine == theirs and (follows(fact, cause) or follows(cause, fact))
            for *mine, fact in self.facts
            for *theirs, cause in other.facts
            if THE_END not in (fact, cause)
        )

    def take_over(self, other: _Group) -> None:
        """Add all of another group."""
        self.members += other.members
        self.known += [entry for entry in other.known if entry not in self.known]
        self.factor = (self.factor & other.factor) or self.factor or other.factor
        self.likes += [traits for traits in other.likes if traits not in self.likes]
        self.facts |= other.facts


class _Groups:
    """The groups of one result."""

    def __init__(self, known: Sequence[Known]) -> None:
        self._known = known
        self._groups: list[_Group] = []
        self._alike: dict[object, list[_Group]] = {}
        self._number: dict[int, int] = {}

    def add(self, member: Member) -> None:
        """Add a violation to the group of its requirement and kind, or begin one."""
        violation, traits = member.violation, traits_of(member.violation)
        entry = entry_of(member.cell, violation, self._known)
        finding = None if entry is None else (entry.file, entry.id)
        key = (bool(violation.expected), member.requirement, traits.kind, finding)
        same = self._alike.setdefault(key, [])
        group = next((one for one in same if one.takes(traits)), None)
        if group is None:
            same.append(_Group(member, traits, entry))
            self._groups.append(same[-1])
        else:
            group.add(member, traits)

    def join(self) -> None:
        """Join the groups that have one cause, and those that both have one with a third."""
        kept: list[_Group] = []
        for group in self._groups:
            first: _Group | None = None
            for other in tuple(kept):
                if first is None and other.is_one_with(group):
                    first = other
                    first.take_over(group)
                elif first is not None and first.is_one_with(other):
                    first.take_over(other)
                    kept.remove(other)
            if first is None:
                kept.append(group)
        self._groups = kept
        self._number = {id(one): number for number, group in self.numbered() for one in group.members}

    def numbered(self) -> Iterable[tuple[int, _Group]]:
        """Every group with its number."""
        return enumerate(self._groups)

    def number_of(self, member: Member) -> int:
        """The number of the group that has the member."""
        return self._number[id(member)]


# ------------------------------------------------------------------------------- what a cause says


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Under which schedules each requirement was judged, and all schedules in the order of the result."""

    judged: Mapping[str, frozenset[str]]
    schedules: tuple[str, ...]


def _cause(
    own: Sequence[Member],
    blocked: Sequence[Member],
    *,
    places: _Places,
    rows: Mapping[str, Requirement],
    requirement: str = "",
    known: Sequence[Known] = (),
) -> Cause:
    told = own or blocked
    requirement = requirement or _telling(own, blocked, known, rows)
    seen = {one.schedule for one in told}
    order = {name: at for at, name in enumerate(rows)}

    def position(one: Member) -> tuple[object, ...]:
        place = order.get(one.requirement, len(order))
        harm = harm_of(one.violation, one.requirement)
        return (one.requirement != requirement, place, harm, *size_of(one.violation))

    ordered = sorted(told, key=position)
    traits = [traits_of(one.violation) for one in ordered]
    factors = [one.factor for one in traits if one.factor]
    return Cause(
        requirement=requirement,
        title=rows[requirement].title if requirement in rows else "",
        harm=min(harm_of(one.violation, one.requirement) for one in told),
        violation=ordered[0].violation,
        own=tuple(ordered) if own else (),
        blocked=tuple(sorted(blocked, key=position)),
        schedules=tuple(name for name in places.schedules if name in seen),
        judged=places.judged,
        factor=factor_words(frozenset.intersection(*factors)) if factors else "",
        known=tuple(known),
    )


def _telling(
    own: Sequence[Member], blocked: Sequence[Member], known: Sequence[Known], rows: Mapping[str, Requirement]
) -> str:
    """A binding requirement: which a finding names first, whose business it is, which controls name, or a basic one."""
    order = list(rows)
    pointed = [one.violation.blocked_by for one in blocked]
    named = [name for entry in known for name in entry.requirements]
    owners = {OWNERS.get(traits_of(one.violation).fact) for one in own}

    def rank(name: str) -> tuple[object, ...]:
        return (
            _LEVELS[rows[name].level.value] if name in rows else len(_LEVELS),
            named.index(name) if name in named else len(named),
            name not in owners,
            -pointed.count(name),
            _PLAIN.index(name) if name in _PLAIN else len(_PLAIN),
            order.index(name) if name in rows else len(order),
        )

    return min(dict.fromkeys(one.requirement for one in own), key=rank)


def _judged(cells: Iterable[Cell]) -> dict[str, frozenset[str]]:
    """The schedules under which each requirement was judged."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        if cell.judgements:
            found.setdefault(cell.requirement, set()).add(cell.schedule)
    return {name: frozenset(schedules) for name, schedules in found.items()}


def _order(cause: Cause, rows: Mapping[str, Requirement]) -> tuple[object, ...]:
    """The sort key of harm; then MUST before SHOULD, what an implementation is, what blocks much, what is small."""
    order = list(rows)
    names = [name for name in cause.requirements if name in rows]
    return (
        cause.expected,
        cause.harm,
        min((_LEVELS[rows[name].level.value] for name in names), default=len(_LEVELS)),
        not any(traits_of(one.violation).fact in FIRST for one in cause.own),
        -len(cause.blocked_requirements),
        *size_of(cause.violation)[:3],
        SEVERITY.index(cause.violation.status),
        min((order.index(name) for name in names), default=len(order)),
    )
