"""An environment per release of torch, without the packages that a run on CPU never loads; and runs in each of them.

Most releases come as wheels for CUDA, whose dependencies are several gigabytes of libraries. ``import torch`` loads
some of them on any machine, so those are installed; packages in `NEVER_LOADED` are not, and of the others every
library that a probe does not load is deleted afterwards. What this cost is kept in the environment's ``ready.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RELEASES = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""The last of each minor version; a newer one is added here."""

NEVER_LOADED = frozenset({"triton", "cuda-bindings", "cuda-pathfinder", "cuda-toolkit", "nvidia-cuda-cccl"})
"""Dependencies of torch that nothing on a CPU imports."""

_PROBE = """
import pathlib, torch, torch.distributed.pipelining
from torch.distributed import fsdp, nn
from torch.nn.parallel import DistributedDataParallel
torch.linalg.qr(torch.eye(2))
maps = pathlib.Path("/proc/self/maps").read_text()
print(*{line.split()[-1] for line in maps.splitlines() if "/" in line}, sep="\\n")
"""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An environment that works, and what it cost."""

    release: str
    torch: str
    """With its build: 2.15.0+cu132."""
    python: str
    seconds: float
    downloaded_mb: float
    """As pip says, without what it found on this machine."""
    installed_mb: int
    deleted_mb: int
    """Libraries that the probe did not load."""


class NotInstalledError(Exception):
    """A release cannot be had here; the message is the reason."""


def ready(release: str, *, within: Path, python: str = sys.executable, limit: float = 1800) -> Ready:
    """The environment of a release, which is made if it is not there yet.

    Raises:
        NotInstalledError: pip cannot get it, or it does not work.
    """
    folder = within / release
    marker = folder / "ready.json"
    if marker.exists():
        return Ready(**json.loads(marker.read_text("utf-8")))
    shutil.rmtree(folder, ignore_errors=True)  # one that was not finished
    within.mkdir(parents=True, exist_ok=True)
    begun, log = time.monotonic(), within / f"{release}.log"
    log.unlink(missing_ok=True)
    _do(python, "-m", "venv", str(folder), log=log, limit=limit)
    pip = (str(interpreter(folder)), "-m", "pip", "--disable-pip-version-check")
    plan = within / f"{release}.plan.json"
    asked = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(plan), f"torch=={release}")
    _do(*pip, "install", *asked, log=log, limit=limit)
    pins = [f"{name}=={version}" for name, version in _planned(plan) if name not in NEVER_LOADED]
    _do(*pip, "install", "--no-cache-dir", "--progress-bar", "off", "--no-deps", *pins, log=log, limit=limit)
    others = [one for one in _project()["dependencies"] if not re.match(r"torch\W", one)]
    _do(*pip, "install", "--constraint", str(_constraints(within)), *others, log=log, limit=limit)
    _do(*pip, "install", "--no-deps", "--editable", str(ROOT), log=log, limit=limit)
    deleted = _prune(folder, log=log, limit=limit)
    words = "import sys, torch; print(torch.__version__, sys.version.split()[0])"
    version, its_python = _do(str(interpreter(folder)), "-c", words, log=log, limit=limit).split()[-2:]
    made = Ready(
        release=release,
        torch=version,
        python=its_python,
        seconds=round(time.monotonic() - begun),
        downloaded_mb=_downloaded(log.read_text("utf-8")),
        installed_mb=_size(folder) // 10**6,
        deleted_mb=deleted // 10**6,
    )
    marker.write_text(json.dumps(asdict(made), indent=1), "utf-8")
    plan.unlink()
    return made


def interpreter(folder: Path) -> Path:
    """The Python of an environment."""
    return folder / "bin" / "python"


def run_on_each(
    files: Iterable[Path], *, doc: str, kept: Path, run: Callable[..., str], is_result: Callable[[str], bool]
) -> None:
    """Run files on the installed releases that the command line names, and keep what each shows.

    Args:
        files: what is run, in order.
        doc: the docstring of the script, whose first line describes it.
        kept: the JSON file of what was shown, by the file's name and release; what is in it is not run again.
        run: called as ``run(file, python=…)``; returns what the file showed with this Python.
        is_result: whether what was shown is kept.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("releases", nargs="*", metavar="RELEASE", default=RELEASES)
    parser.add_argument("--environments", type=Path, default=Path(".venv-torches"))
    parser.add_argument("--only", metavar="PART", default="", help="files whose name contains this")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    chosen = [file for file in files if asked.only in file.stem]
    for release in asked.releases:
        folder = (asked.environments / release).resolve()
        if not (folder / "ready.json").exists():
            print(f"{release}: skipped, no environment; make torches installs it", flush=True)
            continue
        for file in chosen:
            if release in stored(kept).get(file.stem, {}) and not asked.again:
                continue
            shown = run(file, python=interpreter(folder))
            print(f"{release} {file.stem}: {shown.splitlines()[0][:240]}", flush=True)
            if is_result(shown):
                found = stored(kept)  # several releases may be run at once
                found.setdefault(file.stem, {})[release] = shown
                kept.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


def stored(kept: Path) -> dict[str, dict[str, str]]:
    """By file and release, what was shown."""
    return json.loads(kept.read_text("utf-8")) if kept.exists() else {}


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def _constraints(within: Path) -> Path:
    """The project's constraints, without that on torch."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    file = within / "constraints.txt"
    file.write_text("\n".join(one for one in lines if not one.startswith("torch==")) + "\n", "utf-8")
    return file


def _planned(plan: Path) -> list[tuple[str, str]]:
    """Names and versions of what pip would install."""
    found = json.loads(plan.read_text("utf-8"))["install"]
    return [(one["metadata"]["name"].lower(), one["metadata"]["version"]) for one in found]


def _downloaded(log: str) -> float:
    """Megabytes, summed over pip's lines ``Downloading … (12.3 MB)``."""
    sizes = re.findall(r"^\s*Downloading .*\(([\d.]+) (kB|MB|GB)\)$", log, re.MULTILINE)
    return round(sum(float(number) * {"kB": 1e-3, "MB": 1, "GB": 1e3}[unit] for number, unit in sizes), 1)


def _prune(folder: Path, *, log: Path, limit: float) -> int:
    """Delete the CUDA libraries that the probe does not load, and their headers; return how many bytes that were."""
    command = (str(interpreter(folder)), "-W", "ignore", "-c", _PROBE)
    loaded = {os.path.realpath(line) for line in _do(*command, log=log, limit=limit).splitlines()}
    (site,) = (folder / "lib").glob("python3*/site-packages")
    deleted = 0
    for file in sorted((site / "nvidia").rglob("*")):
        if file.is_file() and not file.is_symlink() and os.path.realpath(file) not in loaded:
            if file.suffix == ".py":
                continue
            deleted += file.stat().st_size
            file.unlink()
    _do(*command, log=log, limit=limit)
    return deleted


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def _do(*command: str, log: Path, limit: float) -> str:
    """Run a command; return its output.

    Raises:
        NotInstalledError: it fails, or takes longer than `limit` seconds.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"not done within {limit:.0f} s: {' '.join(command)[:200]}") from error
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}\n")
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if "error" in line.lower()]
        reason = (errors or [f"exit code {done.returncode}, see {log}"])[0].strip()
        raise NotInstalledError(reason.partition(" (from versions")[0])
    return done.stdout
