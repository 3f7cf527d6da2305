"""Judge several releases of an engine side by side, and print a Markdown table.

    make engines                                  # once: sets up .venv-engines
    .venv-engines/bin/python docs/engines/compare.py deepspeed 0.18.9 0.19.0 0.19.8
    .venv-engines/bin/python docs/engines/compare.py megatron 0.15.0 0.16.1
    .venv-engines/bin/python docs/engines/compare.py deepspeed 0.17.6 --script docs/findings/deepspeed-….py

Every release is installed without its dependencies into a folder of its own, which comes first on the import
path of one `pipeconform run`. What is printed for a requirement is the worst verdict over all schedules. A
release that was judged before is not judged again: remove its folder of results for that. With --script, a script
that knows nothing of pipeconform runs on every release instead, and what it prints is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DISTRIBUTIONS = {"deepspeed": "deepspeed", "megatron": "megatron-core", "torchgpipe": "torchgpipe"}
WORST_FIRST = ("crashed", "hung", "error", "failed", "blocked", "nothing_compared", "passed", "not_claimed")
SHOWN = {
    "crashed": "CRASH",
    "hung": "HANG",
    "error": "ERR",
    "failed": "FAIL",
    "blocked": "block",
    "nothing_compared": "NONE",
    "passed": "ok",
    "not_claimed": "–",
}


def install(engine: str, release: str, folder: Path) -> Path:
    """The folder that holds one release and nothing else."""
    target = folder / f"{engine}-{release}"
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
        wanted = f"{DISTRIBUTIONS[engine]}=={release}"
        subprocess.run([*pip, "--target", str(target), wanted], check=True, env=environment)
    return target


def judge(engine: str, release: str, folder: Path, options: list[str]) -> Mapping[str, str]:
    """The worst verdict per requirement, from the run's result file."""
    out = folder / f"{engine}-{release}-results"
    if not (out / "result.json").exists():
        run(engine, release, folder, out, options)
    result = json.loads((out / "result.json").read_text())
    if result["implementation"]["version"] != release:
        sys.exit(f"{result['implementation']['version']} was judged instead of {release}")
    worst: dict[str, str] = {}
    for cell in result["cells"]:
        known = worst.get(cell["requirement"], "not_claimed")
        worst[cell["requirement"]] = min(known, cell["status"], key=WORST_FIRST.index)
    return worst


def run(engine: str, release: str, folder: Path, out: Path, options: list[str]) -> None:
    """Judge one release; its output goes to a log beside its results."""
    command = [sys.executable, "-m", "pipeconform", "run", "--impl", engine, "--out", str(out), *options]
    environment = with_release(engine, release, folder)
    with (folder / f"{engine}-{release}.log").open("w") as log:
        code = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode
    if code not in (0, 1):
        sys.exit(f"{engine} {release} was not judged, see {log.name}")


def with_release(engine: str, release: str, folder: Path) -> Mapping[str, str]:
    """This environment, with one release first on the import path."""
    return {**os.environ, "PYTHONPATH": str(install(engine, release, folder).resolve())}


def printed(script: Path, engine: str, release: str, folder: Path) -> str:
    """What a script prints on one release, and how the first of its errors ends, if it has any."""
    environment = with_release(engine, release, folder)
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return done.stdout + "".join(f"{line}\n" for line in errors[:1])


def main() -> None:
    """Judge, and print a row per requirement that not all releases meet."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog="What follows -- is for pipeconform run."
    )
    parser.add_argument("engine", choices=DISTRIBUTIONS)
    parser.add_argument("releases", nargs="+")
    parser.add_argument("--folder", type=Path, default=Path(".venv-engines/releases"))
    parser.add_argument("--script", type=Path, help="run this on every release instead of judging it")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.script is not None:
        for release in asked.releases:
            print(f"{asked.engine} {release}:\n{printed(asked.script, asked.engine, release, asked.folder)}")
        return
    options = options or ["--profile", "smoke", "--examples", "6", "--ranks", "2-3"]
    verdicts = {r: judge(asked.engine, r, asked.folder, options) for r in asked.releases}
    print(f"`pipeconform run --impl {asked.engine} {' '.join(options)}`\n")
    print("| |", " | ".join(asked.releases), "|")
    print("|---|" + "---|" * len(asked.releases))
    for row in next(iter(verdicts.values())):
        cells = [SHOWN[verdicts[r].get(row, "not_claimed")] for r in asked.releases]
        if set(cells) - {"ok", "–"}:
            print(f"| {row} |", " | ".join(cells), "|")
    judged = [sum(v != "not_claimed" for v in verdicts[r].values()) for r in asked.releases]
    met = [sum(v == "passed" for v in verdicts[r].values()) for r in asked.releases]
    print("| met |", " | ".join(f"{a} of {b}" for a, b in zip(met, judged, strict=True)), "|")


if __name__ == "__main__":
    main()
