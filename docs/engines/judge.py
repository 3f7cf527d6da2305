"""Judge other engines by the smoke profile, and hold them to what is known of them.

    make engines                                       # all of them, in .venv-engines, which it sets up
    python docs/engines/judge.py megatron --limit 900

A gate for continuous integration, which must not depend on chance. It fails on what a run and a second one both
show and the engine's file beside it (deepspeed.toml) does not expect, and on nothing else:

- packages that cannot be had, built or imported are skipped with the reason;
- what only one of two runs shows is reported as flaky;
- an engine that is not judged within the limit is reported and left out;
- an expectation that no case shows is reported: the releases are pinned, so only other cases were drawn. One with
  stored cases must be shown by them: they are executed first, and a judge that is blind for them fails here;
- requirements.txt names what the engines are held to: a requirement that is new in the standard is added by whoever
  has looked at its verdicts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ENGINES = {
    "deepspeed": "deepspeed.pipe",
    "megatron": "megatron.core.pipeline_parallel.schedules",
    "colossalai": "colossalai",
    "dualpipe": "dualpipe.dualpipe",
    "torchgpipe": "torchgpipe",
}
"""The adapters, and what they import."""
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UNSEEN = re.compile(r"\S+: (unexpected pass|matches nothing): ")
VIOLATED = 1  # exit code of pipeconform run
GRACE = 30  # seconds that an interrupted run has to end


@dataclass(frozen=True)
class Attempt:
    """One run: None where it was cut off, or what in it was not expected, and a line about it."""

    complaints: frozenset[str] | None
    line: str


def main() -> None:
    """Set up, judge each engine, and say how it went in a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"by default {', '.join(ENGINES)}")
    parser.add_argument(
        "--environment", type=Path, default=Path(".venv-engines"), help="made by the Makefile"
    )
    parser.add_argument("--out", type=Path, default=Path("build/engines"), help="results and logs")
    parser.add_argument("--limit", type=float, default=900, help="seconds for setting up, and for each run")
    asked = parser.parse_args()
    os.chdir(ROOT)
    asked.out.mkdir(parents=True, exist_ok=True)
    reason = set_up(asked.environment, log=asked.out / "setup.log", limit=asked.limit)
    if reason:
        print(f"engines: skipped, they cannot be installed here: {reason}", flush=True)
        return
    python = asked.environment / "bin" / "python"
    judged = [
        judge(engine, python=python, out=asked.out, limit=asked.limit) for engine in asked.engines or ENGINES
    ]
    sys.exit(0 if all(judged) else 1)


def set_up(environment: Path, *, log: Path, limit: float) -> str:
    """Make the environment if need be; returns why it cannot be made, or nothing."""
    code, text = bounded(["make", "--no-print-directory", f"{environment}/.ready"], log=log, limit=limit)
    if code is None:
        return f"not done within {limit:.0f} s, see {log}"
    errors = [line for line in text.splitlines() if "error" in line.lower()]
    return "" if code == 0 else (errors or [f"exit code {code}, see {log}"])[0].strip()


def judge(engine: str, *, python: Path, out: Path, limit: float) -> bool:
    """Whether an engine shows nothing twice that is not expected."""
    reason = not_importable(engine, python=python, log=out / f"{Path(engine).stem}-import.log", limit=limit)
    if reason:
        print(f"{engine}: skipped, it cannot be imported here: {reason}", flush=True)
        return True
    first = attempt(engine, python=python, out=out / Path(engine).stem, limit=limit)
    print(first.line, flush=True)
    if not first.complaints:
        return True
    second = attempt(engine, python=python, out=out / f"{Path(engine).stem}-again", limit=limit)
    print(second.line, flush=True)
    twice = first.complaints & (second.complaints or frozenset())
    for complaint in sorted(first.complaints | (second.complaints or frozenset())):
        print(f"  {'shown twice' if complaint in twice else 'shown once, flaky'}: {complaint}", flush=True)
    return not twice


def not_importable(engine: str, *, python: Path, log: Path, limit: float) -> str:
    """Why an engine cannot be imported, or nothing."""
    if engine not in ENGINES:
        return ""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    command = [str(python), "-W", "ignore", "-c", f"import {ENGINES[engine]}"]
    code, text = bounded(command, log=log, limit=limit, environment=environment)
    if code is None:
        return f"not done within {limit:.0f} s"
    return "" if code == 0 else (text.strip().splitlines() or [f"exit code {code}"])[-1]


def attempt(engine: str, *, python: Path, out: Path, limit: float) -> Attempt:
    """Run the smoke profile on one engine."""
    options = ["--profile", "smoke", "--ranks", "1-3", "--requirements", ",".join(requirements())]
    expected = HERE / f"{engine}.toml"
    if expected.exists():
        options += ["--expectations", str(expected)]
    (out / "result.json").unlink(missing_ok=True)  # an earlier run's would be taken for this one's
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    command = [str(python), "-m", "pipeconform", "run", "--impl", engine, "--out", str(out), *options]
    code, text = bounded(command, log=out / "run.log", limit=limit)
    if code is None:
        return Attempt(None, f"{engine}: not judged within {limit:.0f} s, passed over")
    last = (text.strip().splitlines() or [""])[-1]
    if code not in (0, VIOLATED):
        return Attempt(frozenset({f"exit code {code}"}), f"{engine}: exit code {code}: {last}")
    result = json.loads((out / "result.json").read_text("utf-8"))
    found = complaints_of(result, stored=replayed(expected))
    return Attempt(found, f"{summary(result)}; {time.monotonic() - begun:.0f} s")


def requirements() -> list[str]:
    """What the engines are held to."""
    lines = (HERE / "requirements.txt").read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def replayed(expected: Path) -> frozenset[str]:
    """The entries of a file of expectations that name stored cases, as ``file:line``."""
    if not expected.exists():
        return frozenset()
    head, *entries = re.split(r"^\[\[expect\]\]", expected.read_text("utf-8"), flags=re.MULTILINE)
    line, found = head.count("\n") + 1, set()
    for entry in entries:
        if re.search(r"^cases\s*=", entry, re.MULTILINE):
            found.add(f"{expected.name}:{line}")
        line += entry.count("\n")
    return frozenset(found)


def complaints_of(result: dict, *, stored: frozenset[str] = frozenset()) -> frozenset[str]:
    """What a result shows beyond its expectations, and which of the entries with `stored` cases it does not show.

    A violation that one run itself found flaky is none, nor is one that a requirement explains which was judged, too.
    """
    judged = {cell["requirement"] for cell in result["cells"]}
    shown = {
        f"{cell['requirement']} under {cell['schedule']}: {violation['status']} '{violation['signature']}'"
        for cell in result["cells"]
        for violation in cell["violations"]
        if violation["confirmed"] and not violation["expected"] and blocker_of(violation) not in judged
    }
    problems = {one for one in problems_of(result) if _is_due(one, stored)}
    return frozenset(shown | problems)


def blocker_of(violation: dict) -> str | None:
    """The requirement that is to blame, if another one is; judged, it has a violation of its own."""
    return (violation.get("control") or {}).get("requirement") or None


def _is_due(problem: str, stored: frozenset[str]) -> bool:
    """Whether what must be changed in the expectations is no matter of the cases that were drawn."""
    return not UNSEEN.match(problem) or problem.partition(": ")[0] in stored


def problems_of(result: dict) -> list[str]:
    """What the run says must be changed in the file of expectations."""
    return (result["expectations"] or {}).get("problems", [])


def summary(result: dict) -> str:
    """A line about a result."""
    implementation, statuses = result["implementation"], worst_of(result)
    judged = [one for one in statuses.values() if one not in ("nothing_compared", "not_claimed", "skipped")]
    met = judged.count("passed")
    words = f"{implementation['name']} {implementation['version']}: {met} of {len(judged)} requirements met"
    known = {c["requirement"] for c in result["cells"] for v in c["violations"] if v["expected"]}
    words += f", expected not to be: {', '.join(sorted(known))}" if known else ""
    unseen = [one for one in problems_of(result) if UNSEEN.match(one)]
    return f"{words} ({'; '.join(one.partition('; remove')[0] for one in unseen)})" if unseen else words


def worst_of(result: dict) -> dict[str, str]:
    """The worst status of each requirement over all schedules."""
    order = ("crashed", "hung", "failed", "error", "flaky", "blocked")
    order += ("nothing_compared", "passed", "not_claimed", "skipped")
    worst: dict[str, str] = {}
    for cell in result["cells"]:
        known = worst.get(cell["requirement"], order[-1])
        worst[cell["requirement"]] = min(known, cell["status"], key=order.index)
    return worst


def bounded(
    command: Iterable[str], *, log: Path, limit: float, environment: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a command in a process group of its own: its exit code, None past `limit` seconds, and its output."""
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [*command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            end(process)
    return code, log.read_text("utf-8", errors="replace")


def end(process: subprocess.Popen) -> None:
    """Interrupt a command, which then clears up after itself, and kill what is left of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
