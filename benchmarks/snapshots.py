"""What must not change while walls are moved: the cases that are drawn, and what is found in them.

    python -m benchmarks.snapshots cases CASES.json RESULT.json…   # digests of what is drawn, by the results' claims
    python -m benchmarks.snapshots compare BEFORE AFTER            # two such files, or two result.json

Cases are drawn for every claimed schedule and subject of the implementations that the results are about, under three
seeds. Results are compared without their times, paths and identities. Exit code 1: something differs; each difference
is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

SEEDS = (0, 1, 2)
SIZE = 4
"""Cases that are drawn for one schedule, subject and seed."""
VOLATILE = frozenset(
    {
        "created",
        "seconds",
        "duration",
        "elapsed",
        "run",
        "path",
        "earlier",
        "cpus",
        "os",
        "log",
        "processor_seconds",
    }
)
"""Fields of a result that say when and where it was made."""


def main() -> None:
    """Take or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_subparsers(dest="what", required=True)
    taking = what.add_parser("cases", help="write digests of drawn cases")
    taking.add_argument("out", type=Path)
    taking.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    comparing = what.add_parser("compare", help="compare two files")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.what == "cases":
        found = {path.parent.name: digests(path) for path in asked.results}
        asked.out.write_text(json.dumps(found, indent=1, sort_keys=True))
        print(f"{asked.out}: {sum(map(len, found.values()))} corpora")
        return
    differences = list(differing(json.loads(asked.before.read_text()), json.loads(asked.after.read_text())))
    print("\n".join(differences[:200]))
    print(f"{len(differences)} differences between {asked.before} and {asked.after}")
    sys.exit(1 if differences else 0)


def digests(result: Path) -> dict[str, str]:
    """By schedule, subject and seed one digest of the cases that are drawn; `result` says what is claimed."""
    from pipeconform.adapter import Capabilities
    from pipeconform.campaign.corpus import Corpus, drawn
    from pipeconform.case.draw.claimed import is_claimed, reachable
    from pipeconform.case.focus import Focus, Limits

    claims = json.loads(result.read_text())["implementation"]["capabilities"]
    capabilities = msgspec.convert(claims, Capabilities)
    limits = Limits(capabilities=capabilities, min_ranks=1, max_ranks=4)
    found = {}
    for claim in capabilities.schedules:
        for focus in Focus:
            if not (is_claimed(focus, claim, capabilities) and reachable(limits, claim, focus)):
                continue
            for seed in SEEDS:
                corpus = Corpus(limits=limits, schedule=claim, focus=focus, seed=seed, size=SIZE)
                text = " ".join(case.digest for case in drawn(corpus))
                found[f"{claim.name} | {focus.value} | {seed}"] = hashlib.sha256(text.encode()).hexdigest()
    return found


def differing(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """A line for each place in which two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after} - VOLATILE):
            yield from differing(before.get(key), after.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differing(one, other, f"{where}[{index}]")
    elif before != after:
        yield f"{where}: {json.dumps(before)[:200]} → {json.dumps(after)[:200]}"


if __name__ == "__main__":
    main()
