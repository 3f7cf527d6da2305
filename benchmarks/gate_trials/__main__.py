"""Whether a gate holds: ``python -m benchmarks.gate_trials`` runs the suite on torch again and again.

``base`` makes expectations of three runs, ``unchanged`` holds runs of the same torch against them, ``planted`` runs of
torch with one mistake each. What the gate said is kept in docs/gate-trials.json, so that a stopped series can go on:

    python -m benchmarks.gate_trials base
    python -m benchmarks.gate_trials unchanged --number 15
    python -m benchmarks.gate_trials unchanged --number 15 --busy 8
    python -m benchmarks.gate_trials planted
"""

from __future__ import annotations

import argparse
import fcntl
from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmarks.gate_trials.page import page
from benchmarks.gate_trials.planted import PLANTED
from benchmarks.gate_trials.running import Trial, expectations, trial

OUT = Path("build/gate")
EXPECTED = Path(__file__).with_name("expectations.toml")
PAGE = Path("docs/gate-trials.md")
KEPT = Path("docs/gate-trials.json")
_BASES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("base", "unchanged", "planted", "page"))
    parser.add_argument("--number", type=int, default=1, help="how many runs there are to be in the end")
    parser.add_argument(
        "--first", type=int, default=1, help="the number of the first, for two series at a time"
    )
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside each run")
    parser.add_argument("--only", default="", help="the planted mistake to run; all of them if left out")
    given = parser.parse_args()
    if given.kind == "base":
        KEPT.unlink(missing_ok=True)  # what was judged by other expectations says nothing about these
        for number in range(1, _BASES + 1):
            _keep(trial(kind="base", name=str(number), beside=given.busy, out=OUT, expected=EXPECTED))
        expectations([OUT / f"base-{n}" / "result.json" for n in range(1, _BASES + 1)], EXPECTED)
    elif given.kind == "unchanged":
        beside = f"beside-{given.busy}-" if given.busy else "quiet-"
        _run("unchanged", [f"{beside}{n}" for n in range(given.first, given.number + 1)], busy=given.busy)
    elif given.kind == "planted":
        names = [one.__name__ for one in PLANTED if given.only in ("", one.__name__)]
        _run("planted", names, busy=given.busy)
    PAGE.write_text(page(_kept()))


def _run(kind: str, names: Iterable[str], *, busy: int) -> None:
    done = {(one.kind, one.name) for one in _kept()}
    for name in names:
        if (kind, name) in done:
            continue
        made = trial(kind=kind, name=name, beside=busy, out=OUT, expected=EXPECTED)
        _keep(made)
        print(
            f"{kind} {name}: exit code {made.code}, {made.seconds:.0f} s", *made.said, sep="\n  ", flush=True
        )


def _kept() -> list[Trial]:
    return msgspec.json.decode(KEPT.read_bytes(), type=list[Trial]) if KEPT.exists() else []


def _keep(made: Trial) -> None:
    """Add one trial; several of these processes may run beside each other."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = msgspec.json.encode([*_kept(), made])
        KEPT.write_bytes(msgspec.json.format(text, indent=1) + b"\n")


if __name__ == "__main__":
    main()
