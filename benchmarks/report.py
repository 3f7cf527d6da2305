"""How long the HTML page of a large result takes, how large it is, and how long a filter of 5,000 rows takes.

    python benchmarks/report.py [--blocks N]

A result of 300 requirements under 8 schedules with 200 violations, all of which differ; the cases are drawn
by hand in all sizes up to 4 ranks with 2 stages each, the timelines are those of the named schedules. The
filter is timed in Chromium where it and Playwright are there, from a letter typed to the second frame after
it; that includes the 150 ms that a page of this size waits for a pause in typing.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from measure import options, seconds, summary, table

from pipeconform.case.blocks import Linear, Mlp, Norm
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.commands.report import write_page
from pipeconform.report.result import (
    Cell,
    Environment,
    Implementation,
    Result,
    Run,
    Totals,
    Violation,
    read_result,
    write_result,
)
from pipeconform.schedule import generate
from pipeconform.spec import requirements

FAMILIES = {
    "GPipe": ("gpipe", 1),
    "1F1B": ("one_f_one_b", 1),
    "Interleaved1F1B": ("interleaved_one_f_one_b", 2),
    "LoopedBFS": ("looped_bfs", 2),
    "InterleavedZeroBubble": ("interleaved_zero_bubble", 2),
    "ZBVZeroBubble": ("zb_v", 2),
    "ZB-H1": ("zb_h1", 1),
    "ZB-H2": ("zb_h2", 1),
}
MESSAGE = """\
the gradient of blocks.0.weight in stage 0 is not the reference's (violation {number})
value differs at [0, 0], the first of 36 of 36
  expected  0.4573353353866999
  actual    0.5085665310622584
  distance  845738722817071 ulp, 0.11 of the value
  bound     exceeded up to 9.78e+12 times"""
BROWSER = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def case(schedule, number):
    v = FAMILIES[schedule][1]
    p = 1 + number % 4
    stages = tuple(Stage(blocks=(Linear(), Mlp(), Norm())[: 1 + s % 3]) for s in range(p * v))
    train = Train(batch_size=2 * p * v, num_microbatches=p * v)
    return Case(
        model=Model(width=2, stages=stages),
        schedule=schedule,
        world=World(size=p, pipeline_ranks=tuple(range(p))),
        program=(train, Zero(), train),
        stages_per_rank=v,
        seed=number,
    )


def timeline(one):
    name, v = FAMILIES[one.schedule]
    made = generate(
        name, num_ranks=one.num_ranks, stages_per_rank=v, num_microbatches=one.trains[0].num_microbatches
    )
    return tuple(tuple(str(a) for a in made[rank]) for rank in range(one.num_ranks))


def violation(requirement, schedule, number):
    one = case(schedule, number)
    identifier = f"{requirement}:{schedule}:default:{number:04x}"
    return Violation(
        id=identifier,
        status="failed",
        signature=f"gradient value {number}",
        message=MESSAGE.format(number=number),
        where="step 0, rank 0, stage 0",
        case=one,
        digest=one.digest,
        minimal=True,
        confirmed=True,
        shrink_executions=30,
        occurrences=3,
        verdicts="\n".join(f"rank {rank}  returned" for rank in range(one.num_ranks)),
        replay=f"pipeconform replay {identifier} --impl torch",
        timeline=timeline(one),
        first_wrong=(0, 1),
    )


def result(*, num_requirements, num_violations, schedules=tuple(FAMILIES)):
    known = [row.id for row in requirements()]
    names = (known + [f"NEW-{k}" for k in range(1, num_requirements + 1)])[:num_requirements]
    every = num_requirements * len(schedules) // max(num_violations, 1)
    cells = []
    for number, (requirement, schedule) in enumerate(itertools.product(names, schedules)):
        wrong = num_violations > 0 and number % every == 0 and number // every < num_violations
        found = (violation(requirement, schedule, number // every),) if wrong else ()
        cells.append(
            Cell(
                requirement=requirement,
                schedule=schedule,
                status="failed" if wrong else "passed",
                judgements=12,
                executions=12,
                distinct_cases=12,
                counts={f"p={p},v={v}": 2 for p in range(1, 4) for v in (1, 2)},
                seconds=0.5,
                violations=found,
            )
        )
    claims = [{"name": name, "placement": "loop", "family": family} for name, (family, _) in FAMILIES.items()]
    return Result(
        product_version="0.1.0",
        standard_version="0.1",
        created="2026-01-02T03:04:05+00:00",
        environment=Environment(
            python="3.11", torch="2.13.0", os="Linux", machine="x86_64", cpus=2, device="cpu", backend="gloo"
        ),
        implementation=Implementation(
            reference="torch", name="large", version="1.0", capabilities={"schedules": claims}
        ),
        run=Run(profile="full", seed=0, corpus=60, search=60, schedules=tuple(schedules), max_ranks=4),
        totals=Totals(
            judgements=12 * len(cells),
            executions=9000,
            distinct_cases=5000,
            distinct_cases_several_ranks=3000,
        ),
        cells=tuple(cells),
    )


def page_of(file, page):
    """As the command does it."""
    write_page([(read_result(file), file)], page)


def filtering(page):
    """Milliseconds from a letter typed to the page that answers it, or why that was not measured."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "not measured: playwright is not installed"
    chromium = shutil.which("chromium")
    if chromium is None:
        return "not measured: no chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER)
        tab = browser.new_page()
        tab.goto(page.as_uri())
        times = [
            tab.evaluate(
                """text => new Promise(done => {
                  const find = document.getElementById("find");
                  find.value = text;
                  const begun = performance.now();
                  find.dispatchEvent(new Event("input", {bubbles: true}));
                  // Timers run in the order of their delays: this one comes after the filter's own.
                  setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(
                    () => done(performance.now() - begun))), 151);
                })""",
                text,
            )
            for text in ("n", "ne", "new", "new-4", "new-49", "", "gradient", "")
        ]
        browser.close()
    return f"median {statistics.median(times):.0f} ms, worst {max(times):.0f} ms"


def main():
    given = options(__doc__, blocks=5)
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder) / "result.json", Path(folder) / "report.html"
        write_result(result(num_requirements=300, num_violations=200), file)
        begun = time.perf_counter()
        page_of(file, page)
        first = time.perf_counter() - begun
        times = [seconds(lambda: page_of(file, page)) for _ in range(given.blocks)]
        table(
            ("300 × 8 cells, 200 violations, first page with its imports", f"{first:.2f} s"),
            ("the same again", summary(times, unit=" s", digits=2)),
            ("size", f"{page.stat().st_size / 2**20:.2f} MiB"),
        )
        write_result(result(num_requirements=5000, num_violations=0, schedules=("GPipe", "1F1B")), file)
        begun = time.perf_counter()
        page_of(file, page)
        table(
            ("5,000 rows", f"{time.perf_counter() - begun:.2f} s, {page.stat().st_size / 2**20:.2f} MiB"),
            ("filtered, with the pause of 150 ms", filtering(page)),
        )


if __name__ == "__main__":
    main()
