"""How long `pipeconform compare` and `pipeconform verify` take on a large result, as commands and in process.

    python benchmarks/gate.py [--blocks N]

The result is that of `report.py`: 300 requirements under 8 schedules with 200 violations. Compared is it with
itself, one violation in ten taken away on either side. Verified is a package of it with six cases per cell.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from measure import options, seconds, summary, table
from report import case
from report import result as result_of

from pipeconform.adapter import Capabilities, ScheduleClaim
from pipeconform.campaign.kept import JudgedCases
from pipeconform.certificate.checks import check_package
from pipeconform.certificate.contents import Certificate, Contents, MachineEnvironment
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_text import render_comparison
from pipeconform.report.result import Cell, read_result, write_result

CASES = 6  # per cell


def without(result, *, every, first):
    """A result without some of its violations."""
    number = 0
    cells = []
    for cell in result.cells:
        kept = []
        for one in cell.violations:
            if number % every != first:
                kept.append(one)
            number += 1
        status = cell.status if kept or not cell.violations else "passed"
        cells.append(msgspec.structs.replace(cell, violations=tuple(kept), status=status))
    return msgspec.structs.replace(result, cells=tuple(cells))


def package(result, path):
    """A package of a large result; only its size matters, so one pool of cases serves all cells."""
    schedules = result.run.schedules
    pool = {s: [case(s, n) for n in range(40)] for s in schedules}
    cells, judged = [], []
    for index, cell in enumerate(result.cells):
        own = [pool[cell.schedule][(index + n) % 40] for n in range(CASES)]
        digests = tuple(one.digest for one in own)
        cells.append(
            msgspec.structs.replace(cell, judgements=CASES, distinct_cases=CASES, counts={"p=2,v=1": CASES})
        )
        judged.append(
            JudgedCases(
                requirement=cell.requirement, schedule=cell.schedule, variant=cell.variant, digests=digests
            )
        )
    claims = Capabilities(schedules=tuple(ScheduleClaim(name=name) for name in schedules))
    implementation = msgspec.structs.replace(
        result.implementation, capabilities=msgspec.json.decode(msgspec.json.encode(claims))
    )
    result = msgspec.structs.replace(result, cells=tuple(cells), implementation=implementation)
    contents = Contents(
        certificate=Certificate(
            level="forward",
            standard_version=result.standard_version,
            product_version=result.product_version,
            created=result.created,
            implementation=implementation.name,
            version=implementation.version,
            reference=implementation.reference,
            source_digest="",
            seed=result.run.seed,
            draws=result.run.corpus,
            granted=False,
            reasons=("a benchmark",),
        ),
        result=result,
        environment=(
            MachineEnvironment(
                environment=result.environment,
                processor="",
                memory=0,
                drivers=(),
                torch_build="",
                packages={},
                switches={},
            ),
        ),
        canaries=(),
        judged=tuple(judged),
        cases={one.digest: msgspec.json.encode(one) for each in pool.values() for one in each},
        others={},
    )
    write_package(packed(contents), path)


def command(*arguments):
    subprocess.run(
        [sys.executable, "-m", "pipeconform", *map(str, arguments)],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main():
    chosen = options(__doc__, blocks=7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = result_of(num_requirements=300, num_violations=200)
        old, new, packed_as = folder / "old.json", folder / "new.json", folder / "large.zip"
        write_result(without(result, every=10, first=0), old)
        write_result(without(result, every=10, first=5), new)
        package(result, packed_as)
        cells: tuple[Cell, ...] = read_result(old).cells
        print(f"{len(cells)} cells; {packed_as.stat().st_size / 1e6:.1f} MB of package")
        commands = {"compare": ("compare", old, new), "verify": ("verify", packed_as)}
        calls = {
            "compare, in process": lambda: render_comparison(
                compare(read_result(old), read_result(new)), "text"
            ),
            "verify, in process": lambda: check_package(packed_as),
        }
        rows = []
        for what, arguments in commands.items():
            before = processor_time()
            took = [seconds(lambda arguments=arguments: command(*arguments)) for _ in range(chosen.blocks)]
            each = (processor_time() - before) / chosen.blocks
            rows.append((f"{what}, the command", summary(took, unit=" s"), f"{each:.2f} s of processor time"))
        rows += [
            (what, summary([seconds(call) for _ in range(chosen.blocks)], unit=" s"))
            for what, call in calls.items()
        ]
        table(*rows)


def processor_time():
    """Seconds that processes started here have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
