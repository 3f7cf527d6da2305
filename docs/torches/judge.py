"""Judge torch's pipelining, its data-parallel wrappers and the reference with each release of torch.

    make torches                                              # smoke profile, every release
    make torches RELEASES=2.14.1 PROFILE=core
    python docs/torches/judge.py 2.14.1 2.15.0 --impl torch --profile core
    python docs/torches/judge.py --impl torch --profile core --requirements LIF-9,TRN-28   # what is new in the standard

One release after the other. Each gets an environment of its own (environments.py), which is installed once and kept; a
release that cannot be installed is skipped with the reason. A result that is there already is kept, and a run that was
interrupted goes on where it stopped (`pipeconform run --resume`); --again judges once more. Results go to
build/torches/RELEASE/IMPL-PROFILE, those of some requirements to build/torches/RELEASE/some/IMPL-PROFILE; page.py makes
docs/releases.md of both.

Exit code 1: the reference does not meet a requirement with some release, or a run broke off. What torch violates is no
failure here, it is the result.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import environments

IMPLEMENTATIONS = ("torch", "torch-ddp", "torch-fully-shard", "torch-fsdp", "reference")
_JUDGED = (0, 1)  # exit codes of `pipeconform run` with a verdict


def main() -> int:
    """Install, judge, and say how it went in a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("releases", nargs="*", metavar="RELEASE", default=environments.RELEASES)
    parser.add_argument("--impl", action="append", choices=IMPLEMENTATIONS, help="by default all of them")
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--requirements", help="judge these alone, such as LIF-9,TRN-28")
    parser.add_argument("--environments", type=Path, default=Path(".venv-torches"))
    parser.add_argument("--out", type=Path, default=Path("build/torches"))
    parser.add_argument("--python", default=sys.executable, help="for new environments")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each run")
    parser.add_argument("--again", action="store_true", help="judge although there is a result")
    asked = parser.parse_args()
    os.chdir(environments.ROOT)
    good = True
    for release in asked.releases:
        try:
            made = environments.ready(release, within=asked.environments, python=asked.python)
        except environments.NotInstalledError as error:
            print(f"{release}: skipped, it cannot be installed here: {error}", flush=True)
            continue
        print(
            f"{release}: torch {made.torch}, Python {made.python}; {made.downloaded_mb:.0f} MB were downloaded "
            f"and {made.installed_mb} MB are installed, in {made.seconds:.0f} s",
            flush=True,
        )
        for impl in asked.impl or IMPLEMENTATIONS:
            out = asked.out / release / ("some" if asked.requirements else "") / f"{impl}-{asked.profile}"
            line, fine = judged(
                impl,
                profile=asked.profile,
                requirements=asked.requirements,
                python=environments.interpreter((asked.environments / release).absolute()),
                out=out,
                limit=asked.limit,
                again=asked.again,
            )
            good = good and fine
            print(f"  {line}", flush=True)
    return 0 if good else 1


def judged(
    impl: str,
    *,
    profile: str,
    python: Path,
    out: Path,
    limit: float,
    again: bool,
    requirements: str | None = None,
) -> tuple[str, bool]:
    """Judge an implementation unless that is done; return a line about it, and whether nothing went wrong."""
    result, code, begun = out / "result.json", 0, time.monotonic()
    if again or not complete(result, requirements):
        if again or complete(result):  # a complete result of other requirements is not gone on with
            shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        command = [str(python), "-m", "pipeconform", "run", "--impl", impl]
        command += ["--requirements", requirements] if requirements else []
        with (out / "run.log").open("a", encoding="utf-8") as log:
            try:
                code = subprocess.run(
                    [*command, "--profile", profile, "--resume", str(out)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=limit,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return f"{impl}: not judged within {limit:.0f} s", False
    if code not in _JUDGED or not complete(result):
        return f"{impl}: exit code {code}, see {out / 'run.log'}", False
    violated = violations(json.loads(result.read_text("utf-8")))
    text = ", ".join(f"{one} {status}" for one, status in violated.items()) or "meets everything"
    return f"{impl}: {text} ({time.monotonic() - begun:.0f} s)", impl != "reference" or not violated


def complete(result: Path, requirements: str | None = None) -> bool:
    """Whether there is a result of a run that was not cut off, and of these requirements if any are named."""
    try:
        run = json.loads(result.read_text("utf-8"))["run"]
        return bool(run["complete"]) and requirements in (None, run.get("selection"))
    except (OSError, ValueError, KeyError):
        return False


def violations(result: dict) -> dict[str, str]:
    """The requirements that are not met, with their most frequent status."""
    wrong = ("crashed", "hung", "failed", "error", "flaky")
    found: dict[str, Counter[str]] = {}
    for cell in result["cells"]:
        if cell["status"] in wrong:
            found.setdefault(cell["requirement"], Counter())[cell["status"]] += 1
    return {one: statuses.most_common(1)[0][0] for one, statuses in sorted(found.items())}


if __name__ == "__main__":
    sys.exit(main())
