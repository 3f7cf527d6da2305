"""The kill matrix: ``python -m benchmarks.kill_matrix`` runs it and writes docs/kill-matrix.md.

Every fault against the requirement it is labelled with, every mutant against all requirements. What has run is
kept in build/kill-matrix and not run again, so a stopped run can go on; ``--fresh`` forgets it. Two files beside
this one go into the page: note.md (when and where the run was made) and equivalent.toml (proofs, by mutant).
"""

from __future__ import annotations

import argparse
import shutil
import tomllib
from pathlib import Path

from pipeconform.reference_impl import mutants

from benchmarks.kill_matrix.page import page
from benchmarks.kill_matrix.records import FaultRecord, MutantRecord, read
from benchmarks.kill_matrix.running import run_faults, run_mutants
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.trial import faults
from pipeconform.ranks.pools import Pools

OUT = Path("build/kill-matrix")
PAGE = Path("docs/kill-matrix.md")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
NOTE = Path(__file__).with_name("note.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="where records are kept")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    parser.add_argument("--fresh", action="store_true", help="forget what has run")
    parser.add_argument("--only", choices=["faults", "mutants", "page"], help="do no more than this")
    parser.add_argument("--mutants", type=int, default=80, help="how many to draw")
    given = parser.parse_args()
    if given.fresh:
        shutil.rmtree(given.out, ignore_errors=True)
    labels, drawn = faults(), mutants.drawn(given.mutants)
    equivalent = tomllib.loads(EQUIVALENT.read_text())
    fault_records, mutant_records = given.out / "faults.jsonl", given.out / "mutants.jsonl"
    if given.only != "page":
        with Pools(preload=PRELOAD) as pools:
            if given.only in (None, "faults"):
                run_faults(labels.values(), pools, fault_records)
            if given.only in (None, "mutants"):
                run_mutants(drawn, pools, mutant_records, equivalent=equivalent)
    if given.only in (None, "page"):
        given.page.write_text(
            page(
                faults=read(fault_records, FaultRecord),
                labels=labels,
                mutants=read(mutant_records, MutantRecord),
                drawn=drawn,
                equivalent=equivalent,
                note=NOTE.read_text(),
            )
        )


if __name__ == "__main__":
    main()
