"""Judge engines by the profile full in pieces, stop when the time is up, go on in the next call, print a table.

    make engines                                                            # once: sets up .venv-engines
    .venv-engines/bin/python docs/engines/full.py deepspeed megatron --minutes 60
    .venv-engines/bin/python docs/engines/full.py deepspeed megatron --minutes 0     # only prints

The whole profile takes hours, and a run that is cut off would begin anew. A piece is one schedule and the
requirements that judge the same cases under it; it is kept in a folder of its own, and is judged again only if it
was cut off, or if the engine's release, the adapter or a rule of the standard is another one now. What is printed
says for each schedule how much was judged by how many cases, what came out, and what was not judged yet.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from judge import bounded

from pipeconform.errors import BadResultError, UsageError
from pipeconform.execute.implementation import describe, resolve
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.report.result import Cell, Result, read_result
from pipeconform.spec import profile, requirements, rule_digests
from pipeconform.spec.selection import select_requirements

LAST = ("ERR", "COM")
"""Chapters that come last: hangs are waited for, and traffic is recorded."""

MOST = 4
"""Requirements in a piece: what is cut off is lost."""


@dataclass(frozen=True)
class Piece:
    """What one run judges."""

    engine: str
    schedule: str
    rows: tuple[str, ...]
    folder: Path

    def result(self) -> Result | None:
        """What its run found, if that is complete and about what is here now."""
        try:
            found = read_result(self.folder / "result.json")
        except BadResultError:
            return None
        same = found.implementation.version == describe(self.engine).version
        same &= found.implementation.source_digest == adapter_digest(self.engine)
        rules = rule_digests()
        same &= all(rules[row] == digest for row, digest in found.rules.items())
        return found if same and found.run.complete else None


def main() -> None:
    """Judge what is missing, as far as the time goes, and print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engines", nargs="+", metavar="ENGINE", help="what pipeconform run --impl takes")
    parser.add_argument("--minutes", type=float, default=60, help="when to stop; 0 prints only")
    parser.add_argument("--ranks", default="2-4", help="as for pipeconform run")
    parser.add_argument("--requirements", help="ids or chapters; by default all that the engine claims")
    parser.add_argument("--examples", type=int, help="cases per subject; by default the profile's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("build/engines/full"))
    asked = parser.parse_args()
    wanted = tuple((asked.requirements or "").split(",")) if asked.requirements else ()
    options = ["--profile", "full", "--ranks", asked.ranks, "--seed", str(asked.seed)]
    options += [] if asked.examples is None else ["--examples", str(asked.examples)]
    size = f"{asked.ranks}-{asked.seed}-{asked.examples or 'own'}"
    pieces = {
        engine: list(pieces_of(engine, wanted, asked.folder / Path(engine.partition(":")[0]).stem / size))
        for engine in asked.engines
    }
    end = time.monotonic() + 60 * asked.minutes
    for piece in in_turn(pieces.values()):
        left = end - time.monotonic()
        if left <= 0:
            break
        if piece.result() is None:
            print(judged(piece, options, limit=left), file=sys.stderr, flush=True)
    print(f"`pipeconform run {' '.join(options)}`, in pieces\n")
    for line in table(pieces, cases=asked.examples or profile("full").corpus):
        print(line)


def pieces_of(engine: str, wanted: Sequence[str], folder: Path) -> Iterator[Piece]:
    """The pieces of an engine: of each schedule the requirements that it claims, by the cases that judge them."""
    capabilities = describe(engine).capabilities
    chosen = set(select_requirements(tuple(wanted)))
    for claim in capabilities.schedules:
        together: dict[object, list[str]] = {}
        for row in requirements():
            judgement = JUDGEMENTS.get(row.id)
            if judgement is None or row.id not in chosen:
                continue
            foci = judgement.foci(claim, capabilities)
            if foci:
                together.setdefault((foci, judgement.observe), []).append(row.id)
        for alike in together.values():
            for begin in range(0, len(alike), MOST):
                rows = tuple(alike[begin : begin + MOST])
                yield Piece(engine, claim.name, rows, folder / f"{claim.name}-{'-'.join(rows)}")


def in_turn(several: Iterable[Sequence[Piece]]) -> list[Piece]:
    """Pieces of all engines side by side, so that each gets its share; what takes long comes last."""
    places = [(piece.rows[0].startswith(LAST), n, piece) for own in several for n, piece in enumerate(own)]
    return [piece for *_, piece in sorted(places, key=lambda place: place[:2])]


def judged(piece: Piece, options: Iterable[str], *, limit: float) -> str:
    """Judge a piece within `limit` seconds, and say in a line how it went."""
    piece.folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    selection = ["--schedules", piece.schedule, "--requirements", ",".join(piece.rows)]
    command = [sys.executable, "-m", "pipeconform", "run", "--impl", piece.engine, *selection, *options]
    log = piece.folder / "run.log"
    code, text = bounded([*command, "--out", str(piece.folder)], log=log, limit=limit, environment=os.environ)
    what = f"{piece.engine} {piece.schedule} {','.join(piece.rows)}: {time.monotonic() - begun:.0f} s"
    if code is None:
        return f"{what}, cut off: judged anew next time"
    if code not in (0, 1):
        return f"{what}, exit code {code}: {(text.strip().splitlines() or [''])[-1]}"
    return what


def table(pieces: Mapping[str, Sequence[Piece]], *, cases: int) -> Iterator[str]:
    """A Markdown table with a line per engine and schedule, and below it what is not met and what is missing."""
    yield "| engine | schedule | requirements | judgements, executions | p, v | met |"
    yield "|---|---|---|---|---|---|"
    notes: list[str] = []
    for engine, several in pieces.items():
        for schedule in dict.fromkeys(piece.schedule for piece in several):
            own = [piece for piece in several if piece.schedule == schedule]
            found = {piece: piece.result() for piece in own}
            cells = [cell for one in found.values() if one for cell in one.cells if cell.judgements]
            yield line(engine, schedule, [one for one in found.values() if one], cells, cases=cases)
            bad = [f"{c.requirement} {c.status}" for c in cells if c.status != "passed"]
            missing = [row for piece in own if found[piece] is None for row in piece.rows]
            notes += [f"- {engine}, {schedule}: not met: {', '.join(bad)}"] if bad else []
            notes += [f"- {engine}, {schedule}: not judged yet: {', '.join(missing)}"] if missing else []
    yield from ["", *notes] if notes else []


def line(engine: str, schedule: str, results: Sequence[Result], cells: Sequence[Cell], *, cases: int) -> str:
    """A line of the table."""
    sizes: Counter[str] = Counter()
    for cell in cells:
        sizes.update(cell.counts)
    version = results[0].implementation.version if results else describe(engine).version
    shown = "; ".join(f"{size}: {count:,}" for size, count in sorted(sizes.items()))
    total, executed = sum(cell.judgements for cell in cells), sum(cell.executions for cell in cells)
    met = sum(cell.status == "passed" for cell in cells)
    return (
        f"| {engine} {version} | {schedule} | {len(cells)}, {cases} cases per subject and as many more each "
        f"| {total:,}, {executed:,} | {shown} | {met} of {len(cells)} |"
    )


def adapter_digest(engine: str) -> str:
    """The SHA-256 of the file that defines an adapter."""
    where = resolve(engine).rpartition(":")[0]
    if not where.endswith(".py"):
        spec = importlib.util.find_spec(where)
        assert spec is not None
        where = str(spec.origin)
    return hashlib.sha256(Path(where).read_bytes()).hexdigest()


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"full.py: {error}")
