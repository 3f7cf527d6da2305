"""Mutants of the product: ``python -m benchmarks.own_mutants`` draws them, runs the tests and writes docs/mutants.md.

What has run is kept in build/own-mutants and not run again, so a stopped run can go on; ``--fresh`` forgets it, and
``--again`` tries survivors once more. Which tests reach which line is found by running them once; why a survivor is
equivalent stands in equivalent.toml, by the mutant's name.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec

from benchmarks.own_mutants.drawing import drawn
from benchmarks.own_mutants.page import page
from benchmarks.own_mutants.reach import known
from benchmarks.own_mutants.running import read, run

OUT = Path("build/own-mutants")
PAGE = Path("docs/mutants.md")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--number", type=int, default=100, help="how many")
    parser.add_argument(
        "--within", default="", help="only modules that begin so, as judge.forward or judge.,suites."
    )
    parser.add_argument("--limit", type=float, default=120.0, help="processor time for one mutant's tests")
    parser.add_argument("--out", type=Path, default=OUT, help="where records are kept")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    parser.add_argument("--fresh", action="store_true", help="forget what has run")
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument("--only-page", action="store_true", help="run nothing")
    given = parser.parse_args()
    if given.fresh:
        shutil.rmtree(given.out, ignore_errors=True)
    chosen = drawn(seed=given.seed, number=given.number, within=given.within)
    records = given.out / "records.jsonl"
    if given.again:
        kept = [one for one in read(records).values() if one.noticed]
        records.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in kept))
    if not given.only_page:
        # elsewhere: what the tests leave in this process would be in every mutant's
        subprocess.run(
            [sys.executable, "-m", "benchmarks.own_mutants.reach", given.out / "reach.json"], check=True
        )
        run(chosen, records, reach=known(given.out / "reach.json"), limit=given.limit)
    told = read(records)
    found = [told[mutant.name] for mutant in chosen if mutant.name in told]
    equivalent = tomllib.loads(EQUIVALENT.read_text())
    given.page.write_text(page(found, seed=given.seed, equivalent=equivalent, within=given.within))
    print(f"{sum(one.noticed for one in found)} of {len(found)} were noticed; see {given.page}")


if __name__ == "__main__":
    main()
