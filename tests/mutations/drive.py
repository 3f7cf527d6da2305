"""Mutate files of every kind and use them as the commands do: they are read, or refused in one line.

``python tests/mutations/drive.py KIND NUMBER [SEED]`` prints what became of NUMBER mutations.
"""

from __future__ import annotations

import io
import random
import re
import signal
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipeconform.case.any_case import decode_any_case
from pipeconform.case.case import Case, format_case
from pipeconform.case.draw.traits import traits
from pipeconform.certificate.checks import check_package
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.commands.replay import read_stored
from pipeconform.commands.schedule_text import describe, verdict
from pipeconform.commands.verify import verdict_lines
from pipeconform.errors import PipeconformError
from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_text import FORMATS, render_comparison
from pipeconform.gate.expectations import read_expectations
from pipeconform.report.case_text import describe_case
from pipeconform.report.console import SafeConsole
from pipeconform.report.html import render_page
from pipeconform.report.result import read_result, write_result
from pipeconform.report.summary import render_overview, render_summary
from pipeconform.schedule import Delivery, verify
from pipeconform.schedule.families import families
from pipeconform.schedule.files import write_table
from tests.case.examples import small_case
from tests.certificate.conftest import sound
from tests.mutations.mutate import mutated
from tests.report.conftest import Make

PATIENCE = 10.0
"""Seconds of processor time that one file may take."""


@dataclass
class Outcome:
    """What became of the mutations of one kind of file."""

    kind: str
    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    """Tracebacks, with the seed of each."""


class HangsError(Exception):
    """It takes too long."""


def drive(kind: str, number: int, *, folder: Path, first: int = 0) -> Outcome:
    """Use `number` mutations of a kind; numbers from `first` on are their seeds."""
    names, use = KINDS[kind](folder)
    outcome = Outcome(kind)

    def late(_number: int, _frame: object) -> None:
        raise HangsError

    before = signal.signal(signal.SIGVTALRM, late)
    try:
        for seed in range(first, first + number):
            rng = random.Random(f"{kind} {seed}")
            path, data = rng.choice(names)
            target = folder / f"mutated-{path}"
            target.write_bytes(mutated(data, rng))
            signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE)
            try:
                use(target)
                outcome.read += 1
            except PipeconformError as error:
                outcome.refused[type(error).__name__] += 1
            except Exception:
                outcome.broken.append(f"seed {seed}, {target.name}:\n{traceback.format_exc()}")
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return outcome


Use = Callable[[Path], object]
Files = tuple[list[tuple[str, bytes]], Use]


def results(folder: Path) -> Files:
    make = Make()
    cells = (
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("TRN-1", "1F1B", counts={"p=2,v=1": 4}, microbatches={"p=2, one": 4}),
        make.cell("TRN-4", "GPipe", status="skipped", reason="needs three ranks"),
    )
    good = folder / "good.json"
    write_result(make.result(*cells), good)
    sane = read_result(good)

    def use(path: Path) -> None:
        result = read_result(path)
        console = SafeConsole(file=io.StringIO(), width=100)
        render_overview(result, console)
        render_summary(result, console, where=path)
        render_page([(result, path)])
        comparison = compare(sane, result)
        for style in FORMATS:
            render_comparison(comparison, style)
        stored = [one.id for cell in result.cells for one in cell.violations]
        for name in stored[:2]:  # each of them reads the file again
            read_stored(name, result=path)

    return [("result.json", good.read_bytes())], use


def packages(folder: Path) -> Files:
    contents = sound(Make())
    files = packed(contents)
    write_package(files, folder / "good.zip")
    whole = (folder / "good.zip").read_bytes()

    def use(path: Path) -> None:
        target = path
        if path.name != "mutated-package.zip":
            name = path.name.removeprefix("mutated-").replace("~", "/")
            target = folder / "rewritten.zip"
            if name == "manifest.json":
                _exchanged(whole, name, path.read_bytes(), target)
            else:  # by somebody who writes the manifest anew
                write_package({**files, name: path.read_bytes()}, target)
        checked = check_package(target)
        for doubt in checked.doubts:
            str(doubt)
        verdict_lines(checked, "unsigned")

    names = ["certificate.json", "canaries.json", "judged.json", "environment.json", "result.json"]
    members = [
        (name.replace("/", "~"), files[name]) for name in [*names, next(n for n in files if "cases/" in n)]
    ]
    with zipfile.ZipFile(folder / "good.zip") as archive:
        members.append(("manifest.json", archive.read("manifest.json")))
    return [*members, *[("package.zip", whole)] * 3], use


def _exchanged(whole: bytes, name: str, data: bytes, target: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(whole)) as source, zipfile.ZipFile(target, "w") as archive:
        for one in source.namelist():
            archive.writestr(one, data if one == name else source.read(one))


def cases(_folder: Path) -> Files:
    def use(path: Path) -> None:
        case, _, _ = _stored(path)
        if isinstance(case, Case):
            traits(case)
            format_case(case)
        describe_case(case)
        assert decode_any_case(msgspec.json.encode(case)).digest == case.digest

    def _stored(path: Path):
        found = read_stored(str(path), result=path)
        return found.case, found.name, found.requirement

    pipeline = [("case.json", msgspec.json.encode(one)) for one in (small_case(), Make().case())]
    wrapper = ("case.json", b'{"module":"plain","ranks":2,"steps":[{"passes":[{"sync":"yes"}]}],"seed":1}')
    return [*pipeline, wrapper], use


ENTRY = """format = 1

[[expect]]
requirement = "TRN-4"
status = "failed"
signature = "gradient value"
reason = "gradients of earlier steps are divided again"
issue = "https://example.org/issues/7"
owner = "team"
expires = 2031-01-01
p = [2]
cases = ["case.json"]
"""


def expectations(folder: Path) -> Files:
    (folder / "case.json").write_bytes(msgspec.json.encode(Make().case()))
    return [("expectations.toml", ENTRY.encode())], read_expectations


def tables(folder: Path) -> Files:
    found = []
    for family in families():
        if family.name in ("gpipe", "1f1b", "zb_v"):
            table = family.generate(
                num_ranks=2, stages_per_rank=2 if family.name == "zb_v" else 1, num_microbatches=4
            )
            for suffix in (".csv", ".json"):
                write_table(table, folder / f"table{suffix}")
                found.append((f"table{suffix}", (folder / f"table{suffix}").read_bytes()))

    def use(path: Path) -> None:
        from pipeconform.commands.tables import Source

        source = Source(
            file=str(path),
            name=None,
            ranks=None,
            per_rank=None,
            microbatches=None,
            placement=None,
            lower=False,
        )
        table = source.table()
        describe(table)
        violations = verify(table)
        verdict(table, violations, strictest=Delivery.BUFFERED, family=None)

    return found, use


KINDS: Mapping[str, Callable[[Path], Files]] = {
    "result": results,
    "package": packages,
    "case": cases,
    "expectations": expectations,
    "table": tables,
}


def main(kind: str, number: int, first: int = 0) -> int:
    """Print what became of them, and the most memory that it took."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = drive(kind, number, folder=Path(folder), first=first)
    print(
        f"{kind}: {outcome.read} read, {dict(outcome.refused)} refused, {len(outcome.broken)} broken; {_most()} MiB"
    )
    for text in outcome.broken[:20]:
        print(text)
    return int(bool(outcome.broken))


def _most() -> int:
    """The most memory of this program, in MiB; `getrusage` also counts the process that started it."""
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) // 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
