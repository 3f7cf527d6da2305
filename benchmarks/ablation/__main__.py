"""Every fault of the reference without every single claim that matters: ``python -m benchmarks.ablation``.

A fault is either detected all the same, or its cell says that it is not claimed, judged in part, or that nothing was
compared. What is left is an escape. What has run is kept in docs/ablation.jsonl and not run again, also in a later
run elsewhere; docs/ablation.md is made of it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from benchmarks.ablation.page import page
from benchmarks.ablation.running import Record, is_claimed, matters, tried
from pipeconform.campaign.describing import describe
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.trial import faults
from pipeconform.errors import HarnessError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools

OUT = Path("docs/ablation.jsonl")
PAGE = Path("docs/ablation.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="where records are kept")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing more after these")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    known = _read(given.out)
    asked = [fault for fault in faults().values() if fault.requirement in JUDGEMENTS]
    wanted: dict[tuple[str, str], None] = {}
    begun = time.monotonic()
    with Pools(preload=PRELOAD) as pools, given.out.open("ab") as file:
        todo = []
        for fault in asked:
            claimed = describe(pools, fault.reference).capabilities
            for claim in matters(fault, claimed):
                wanted[fault.name, claim] = None
                if (fault.name, claim) not in known:
                    todo.append((fault, claim, claimed))
        # what needs no execution comes first, then a claim of every fault before another one of any
        order: dict[str, int] = {}
        ranked = []
        for one in todo:
            order[one[0].name] = order.get(one[0].name, 0) + 1
            ranked.append((is_claimed(*one), order[one[0].name], one))
        for _, _, (fault, claim, claimed) in sorted(ranked, key=lambda one: one[:2]):
            if time.monotonic() - begun > given.seconds:
                break
            try:
                record = tried(fault, claim, claimed, pools)
            except HarnessError as error:
                print(f"{fault.name} without {claim}: {error}", flush=True)
                continue
            known[fault.name, claim] = record
            file.write(msgspec.json.encode(record) + b"\n")
            file.flush()
    given.page.write_text(page([known[key] for key in wanted if key in known], asked=len(wanted)))


def _read(path: Path) -> dict[tuple[str, str], Record]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = [msgspec.json.decode(line, type=Record) for line in lines]
    return {(one.fault, one.claim): one for one in records}


if __name__ == "__main__":
    main()
