"""docs/kill-matrix.md, from records and from nothing else."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.kill_matrix.records import FaultRecord, MutantRecord
from benchmarks.mutants import Mutant
from pipeconform.campaign.trial import MOST_EXECUTIONS

__all__ = ["page"]

_TOLD = 110  # characters of a message that a table quotes
_QUICK = 5.0  # seconds


def page(
    *,
    faults: Mapping[str, FaultRecord],
    labels: Mapping[str, object],
    mutants: Mapping[str, MutantRecord],
    drawn: Sequence[Mutant],
    equivalent: Mapping[str, str],
    note: str,
) -> str:
    """The page. `labels` are the faults by name, `drawn` the mutants, `equivalent` proofs by a mutant's name."""
    reported = {name: fault for name, fault in labels.items() if getattr(fault, "source", "")}
    invented = {name: fault for name, fault in labels.items() if name not in reported}
    parts = [
        _head(faults, labels, mutants, drawn, equivalent, note),
        f"## Reported defects ({len(reported)})\n\nDefects that users reported of real engines, reproduced in "
        "the reference. Each links to its report.\n\n" + _fault_table(reported, faults),
        _mutant_part(mutants, drawn, equivalent),
        f"## Hand-written faults ({len(invented)})\n\n" + _fault_table(invented, faults),
    ]
    return "\n\n".join(parts) + "\n"


def _head(
    faults: Mapping[str, FaultRecord],
    labels: Mapping[str, object],
    mutants: Mapping[str, MutantRecord],
    drawn: Sequence[Mutant],
    equivalent: Mapping[str, str],
    note: str,
) -> str:
    ran = [faults[name] for name in labels if name in faults]
    caught = [one for one in ran if one.detected and one.control]
    missed = [
        name for name in labels if name in faults and not (faults[name].detected and faults[name].control)
    ]
    waiting = [name for name in labels if name not in faults]
    loads, killed, survivors = _sorted(mutants, drawn)
    open_ = [name for name in survivors if name not in equivalent]
    seconds = sorted(one.seconds for one in caught)
    median = f"{statistics.median(seconds):.1f}" if seconds else "–"
    quick = sum(one <= _QUICK for one in seconds)
    lines = [
        "# Kill matrix",
        "",
        "Implementations that are wrong on purpose, and whether the suite sees it. Written by "
        "`python -m benchmarks.kill_matrix`, which says below when and where it ran.",
        "",
        f"A fault is *detected* when the requirement it is labelled with catches it within {MOST_EXECUTIONS} "
        "executions, with the expected status and a message that names what its label demands, on a case on "
        "which the reference meets the requirement. A mutant has no label: it is *killed* by the first of all "
        "requirements that it breaks on a fixed list of about 200 executions or, if it survives those and is not "
        "proved equivalent, on another as long; the reference passes them all.",
        "",
        f"- {len(caught)} of {len(ran)} faults detected; median {median} s of wall time each, "
        f"{quick} within {_QUICK:.0f} s",
        f"- {len(killed)} of {len(loads)} mutants killed, {len(survivors)} survive: "
        f"{len(survivors) - len(open_)} proved equivalent, {len(open_)} open",
        f"- missed faults: {', '.join(missed) or 'none'}",
        *([f"- not run yet (newer than the run): {', '.join(waiting)}"] if waiting else []),
        f"- open mutants: {', '.join(f'`{name}`' for name in open_) or 'none'}",
        "",
        note,
    ]
    return "\n".join(lines).rstrip()


def _sorted(
    mutants: Mapping[str, MutantRecord], drawn: Sequence[Mutant]
) -> tuple[list[str], list[str], list[str]]:
    loads = [one.name for one in drawn if one.name in mutants and mutants[one.name].loads]
    killed = [name for name in loads if mutants[name].killed]
    return loads, killed, [name for name in loads if not mutants[name].killed]


def _fault_table(labels: Mapping[str, object], faults: Mapping[str, FaultRecord]) -> str:
    rows = []
    for name, label in labels.items():
        record = faults.get(name)
        source = getattr(label, "source", "")
        became = "not run" if record is None else _became(record)
        rows.append(
            (
                f"[{name}]({source})" if source else name,
                _text(label, "requirement"),
                _text(label, "schedule"),
                _text(label, "summary"),
                f"{became} ({_text(label, 'expected_status')})",
                "" if record is None else str(record.executions),
                "" if record is None else f"{record.seconds:.1f}",
            )
        )
    return _table(("fault", "breaks", "schedule", "what is wrong", "became", "executions", "s"), rows)


def _text(label: object, name: str) -> str:
    return str(getattr(label, name))


def _became(record: FaultRecord) -> str:
    if not record.control and record.detected:
        return "**accused the reference too**"
    return "detected" if record.detected else "**missed**"


def _mutant_part(
    mutants: Mapping[str, MutantRecord], drawn: Sequence[Mutant], equivalent: Mapping[str, str]
) -> str:
    loads, killed, survivors = _sorted(mutants, drawn)
    by_name = {one.name: one for one in drawn}
    operators = Counter(by_name[name].mutation.operator for name in loads)
    caught = Counter(by_name[name].mutation.operator for name in killed)
    statuses = Counter(mutants[name].status for name in killed)
    stillborn = [one.name for one in drawn if one.name in mutants and not mutants[one.name].loads]
    lines = [
        f"## Mutants ({len(loads)})",
        "",
        "One syntactic change of the reference each, drawn by a hash from all changes that eight operators make "
        "(`benchmarks/mutants`), so that none is chosen by hand. Every one runs as an implementation of its own, "
        "imported through a hook in the rank processes.",
        "",
        "Killed as: " + ", ".join(f"{status} {count}" for status, count in statuses.most_common()) + ".",
        *([f"Could not be imported, not counted: {', '.join(stillborn)}."] if stillborn else []),
        "",
        _table(
            ("operator", "mutants", "killed"),
            [(name, str(count), str(caught[name])) for name, count in sorted(operators.items())],
        ),
        "",
        f"### Survivors ({len(survivors)})",
        "",
        _table(
            ("mutant", "where", "change", "executions", "why it survives"),
            [
                (
                    f"`{name}`",
                    _where(by_name[name]),
                    _change(by_name[name]),
                    str(mutants[name].executions),
                    equivalent.get(name, "**open**"),
                )
                for name in survivors
            ],
        ),
        "",
        f"### Killed ({len(killed)})",
        "",
        _table(
            ("mutant", "where", "change", "killed by", "first message", "executions", "s"),
            [
                (
                    f"`{name}`",
                    _where(by_name[name]),
                    _change(by_name[name]),
                    f"{mutants[name].requirement} ({mutants[name].status})",
                    _short(mutants[name].message),
                    str(mutants[name].executions),
                    f"{mutants[name].seconds:.1f}",
                )
                for name in killed
            ],
        ),
    ]
    return "\n".join(lines)


def _where(mutant: Mutant) -> str:
    return f"{mutant.module}.{mutant.mutation.where}"


def _change(mutant: Mutant) -> str:
    before, after = (_short(text) for text in (mutant.mutation.before, mutant.mutation.after))
    return f"`{before}` → `{after}`"


def _short(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= _TOLD else first[: _TOLD - 1] + "…"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
