"""Whom the suite accuses: ``python -m benchmarks.attribution`` judges faults and writes docs/attribution.md.

Every fault of the reference is judged by all requirements at profile smoke, under the schedule with which it shows.
Results are kept in build/attribution, what they say in docs/attribution.json, and not made again, so a stopped run can
go on; ``--fresh`` forgets both. The faults are judged in an order drawn by a hash, so that a part of them is a sample.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path

from benchmarks.attribution.page import page
from benchmarks.attribution.running import run
from benchmarks.attribution.verdicts import Verdict, verdict_of
from benchmarks.lines import keep, kept
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.trial import faults
from pipeconform.ranks.pools import Pools
from pipeconform.report.result import read_result

OUT = Path("build/attribution")
PAGE = Path("docs/attribution.md")
KEPT = Path("docs/attribution.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="where results are kept")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where what the results say is kept")
    parser.add_argument("--fresh", action="store_true", help="forget what was judged")
    parser.add_argument("--number", type=int, default=None, help="how many faults to judge; all if left out")
    parser.add_argument(
        "--part", default="1/1", help="of several processes beside each other: the first of two is 1/2"
    )
    parser.add_argument("--only-page", action="store_true", help="judge nothing, write the page")
    given = parser.parse_args()
    if given.fresh:
        shutil.rmtree(given.out, ignore_errors=True)
        given.kept.unlink(missing_ok=True)
    labels = dict(sorted(faults().items(), key=lambda one: hashlib.sha256(one[0].encode()).hexdigest()))
    if not given.only_page:
        part, parts = map(int, given.part.split("/"))
        with Pools(preload=PRELOAD) as pools:
            known = kept(given.kept, Verdict)
            mine = list(labels.values())[: given.number][part - 1 :: parts]
            run([one for one in mine if one.name not in known], pools, given.out)
    files = {name: given.out / f"{name}.json" for name in labels}
    made = {name: verdict_of(read_result(file)) for name, file in files.items() if file.exists()}
    verdicts = {name: one for name, one in (kept(given.kept, Verdict) | made).items() if name in labels}
    keep(verdicts, given.kept)
    given.page.write_text(page(labels, verdicts))


if __name__ == "__main__":
    main()
