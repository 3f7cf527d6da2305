"""The changes from one result to the next, which every output format renders."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pipeconform.gate.comparison_causes import CauseChange, cause_changes
from pipeconform.report.cause_text import replay_line
from pipeconform.report.causes import Known
from pipeconform.report.change import CellChange, Changes, Key, Kind, aligned, is_judged, shown
from pipeconform.report.result import Cell, Result, Violation
from pipeconform.report.side import Side, only_torch_changed, side_of

__all__ = ["BLOCKING", "Cause", "CauseChange", "Change", "Comparison", "Kind", "compare"]

BLOCKING: tuple[Kind, ...] = ("regressed", "new", "flaky", "lost", "less")
"""The kinds of change that make a gate fail."""

Cause = Literal["implementation", "rules", "selection", "torch"]
"""``implementation`` if the requirement is the same in both results, ``rules`` if it is not; ``selection`` if the new
run was not asked to judge it; ``torch`` if the requirement is the same and only torch changed between the runs."""

_LONGEST_SELECTION = 60


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two results."""

    kind: Kind
    cause: Cause
    requirement: str
    schedule: str
    variant: str
    before: str
    """The cell's status in the old result; ``absent`` if it has no such cell."""
    after: str
    signature: str = ""
    detail: str = ""
    violation: str = ""
    """The id of the violation in the new result; of a fixed violation, in the old one."""
    replay: str = ""

    @property
    def blocks(self) -> bool:
        """Whether this change makes a gate fail."""
        return self.kind in BLOCKING


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All changes, in the order of the standard, and a description of both results."""

    old: Side
    new: Side
    changes: tuple[Change, ...]
    unchanged: int
    """Cells with the same verdict."""
    still_violated: int
    """Violations that both results show."""
    causes: tuple[CauseChange, ...] = ()
    """The causes of both results: new ones, those that are gone, and those that are still there."""

    @property
    def blocked(self) -> bool:
        """Whether a gate should fail."""
        return any(change.blocks for change in self.changes)

    def of(self, kind: Kind) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)


def compare(
    old: Result,
    new: Result,
    *,
    known: Sequence[Known] | None = None,
    files: tuple[Path, Path] | None = None,
) -> Comparison:
    """Compare two results cell by cell, and their causes.

    Two violations are the same if requirement, schedule, variant, status and signature are equal. Expected violations
    in the new result are not changes. A blocked violation came or went with what blocks it, which is compared itself.
    `known` lists findings, as in `causes_of`; `files` are the paths of both results, for headings and commands.
    """
    old_file, new_file = files or (None, None)
    sides = side_of(old, file=old_file), side_of(new, file=new_file)
    by_torch = only_torch_changed(*sides)
    changes: list[Change] = []
    unchanged = still = 0
    cells = Changes(old, new, known=known)
    for key, (before, after) in aligned([old, new]).items():
        pair = _Pair(old, new, before, after, key, cells, files=files, by_torch=by_torch)
        found = list(pair.changes())
        changes += found
        unchanged += not found
        still += pair.still_violated()
    return Comparison(
        old=sides[0],
        new=sides[1],
        changes=tuple(changes),
        unchanged=unchanged,
        still_violated=still,
        causes=cause_changes(old, new, known=known),
    )


class _Pair:
    """One cell in both results."""

    def __init__(
        self,
        old: Result,
        new: Result,
        before: Cell | None,
        after: Cell | None,
        key: Key,
        cells: Changes,
        *,
        files: tuple[Path, Path] | None,
        by_torch: bool,
    ) -> None:
        self.old, self.new, self.before, self.after, self.cells = old, new, before, after, cells
        self.files, self.by_torch = files, by_torch
        self.requirement, self.schedule, self.variant = key

    def changes(self) -> Iterator[Change]:
        for change in self.cells.of(self.before, self.after):
            yield self._change(change, detail=self._detail(change))
        if is_judged(self.before) and is_judged(self.after):
            for detail in self._less():
                yield self._change(CellChange(kind="less"), detail=detail)

    def still_violated(self) -> int:
        return len(shown(self.before).keys() & shown(self.after).keys())

    def _detail(self, change: CellChange) -> str:
        violation = change.violation
        if violation is None:
            return self._no_longer_judged() if change.kind == "lost" else ""
        if change.kind == "sometimes" and not violation.reruns:
            return f"known to show by chance; {_first_line(violation.message)}"
        if change.kind in ("flaky", "sometimes"):
            return f"shown again in {violation.shown_again} of {violation.reruns} executions"
        return _first_line(violation.message)

    def _no_longer_judged(self) -> str:
        after = self.after
        if after is None and (why := self._not_asked()):
            return why
        state = "absent" if after is None else after.status.replace("_", " ")
        if after is not None and after.status == "nothing_compared":
            return after.reason
        reason = "" if after is None else _first_line(after.reason)
        return f"no longer judged: {state}" + (f" ({reason})" if reason else "")

    def _not_asked(self) -> str:
        """Why the new run was not asked to judge this cell; empty if it was, as far as the result tells."""
        run = self.new.run
        if not _asked(run.selection, self.requirement):
            chosen = textwrap.shorten(run.selection.replace(",", ", "), _LONGEST_SELECTION, placeholder=" …")
            return f"not selected in the new run (--requirements {chosen})"
        if self.schedule not in run.schedules and not run.unrestricted:
            return f"not selected in the new run (--schedules {', '.join(run.schedules)})"
        return ""

    def _less(self) -> Iterator[str]:
        """Lost coverage that verdicts do not show: what a cell was judged on before, and is not now."""
        before, after = self.before, self.after
        assert before is not None
        assert after is not None
        sizes = [size for size in before.counts if size not in after.counts]
        if sizes:
            yield f"no more cases with {'; '.join(size.replace(',', ', ') for size in sizes)}"
        classes = [one for one in before.microbatches if one not in after.microbatches]
        if classes and after.microbatches:
            words = {"one": "m = 1", "fewer": "m < p", "equal": "m = p", "more": "m > p"}
            yield f"no more cases with {', '.join(words.get(one, one) for one in classes)}"
        if self._same_corpus_was_asked_for() and after.judgements < before.judgements:
            yield f"fewer examples: {before.judgements} → {after.judgements}"

    def _same_corpus_was_asked_for(self) -> bool:
        """Whether fewer judgements mean less coverage; another seed or standard draws other, equally good cases."""
        old, new = self.old.run, self.new.run
        return (new.corpus, new.search) < (old.corpus, old.search) or (
            old.seed == new.seed and self.old.standard_version == self.new.standard_version
        )

    def _change(self, change: CellChange, *, detail: str) -> Change:
        violation = change.violation
        return Change(
            kind=change.kind,
            cause=self._cause(),
            requirement=self.requirement,
            schedule=self.schedule,
            variant=self.variant,
            before="absent" if self.before is None else self.before.status,
            after="absent" if self.after is None else self.after.status,
            signature="" if violation is None else f"{violation.status}: {violation.signature}",
            detail=detail,
            violation="" if violation is None else violation.id,
            replay=""
            if violation is None or change.kind == "fixed"
            else replay_line(violation, where=self._file_with(violation)),
        )

    def _file_with(self, violation: Violation) -> Path | None:
        """The file whose result has the violation: the old one's if the new result does not show it."""
        if self.files is None:
            return None
        return self.files[self.after is not None and violation in self.after.violations]

    def _cause(self) -> Cause:
        """``rules`` if the requirement changed, or the standard, which then draws other cases."""
        if self.after is None and self._not_asked():
            return "selection"
        before, after = self.old.rules.get(self.requirement), self.new.rules.get(self.requirement)
        same_rule = before == after if before and after else True
        if self.old.standard_version != self.new.standard_version or not same_rule:
            return "rules"
        new_rule = self.requirement not in self.old.rules and self.before is None
        if new_rule and _covered(self.old, self.requirement):
            return "rules"
        return "torch" if self.by_torch else "implementation"


def _covered(old: Result, requirement: str) -> bool:
    """Whether the old run would have judged a requirement if its standard had contained it."""
    return bool(old.rules) and _asked(old.run.selection, requirement)


def _asked(selection: str, requirement: str) -> bool:
    """Whether a selection of ids and chapters has a requirement; without one, everything is selected."""
    asked = [name.strip().upper() for name in selection.split(",") if name]
    return not asked or requirement.partition("-")[0] in asked or requirement in asked


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
