"""Packs pipeconform and what it needs but torch and numpy, for a machine with a GPU and without a network.

    python -m benchmarks.gpu.bundle [--out build/pipeconform-gpu.tar.gz] [--nccl libnccl.so.2.xz]

There: ``tar xf pipeconform-gpu.tar.gz && python3 pipeconform-gpu/run.py``, with the Python that has torch.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["bundle", "needed"]

ROOT = Path(__file__).resolve().parents[2]
NAME = "pipeconform-gpu"
MOST = 48 << 20  # bytes, of which an NCCL is 36 MiB
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
THERE = frozenset({"torch", "numpy"})
"""What a machine that computes with torch has."""
_PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in (34, 31, 28, 27, 24, 17)), "manylinux2014_x86_64")
_RAN = ("benchmarks/gpu/*.py",)


def main() -> int:
    """Write the archive; 1 if it is larger than it may be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build", f"{NAME}.tar.gz"))
    parser.add_argument("--pythons", default=",".join(PYTHONS), help=f"default: {','.join(PYTHONS)}")
    parser.add_argument(
        "--nccl", type=Path, metavar="FILE", help="a libnccl.so.2.xz with which ranks share a GPU"
    )
    asked = parser.parse_args()
    size = bundle(asked.out, pythons=tuple(asked.pythons.split(",")), nccl=asked.nccl)
    print(f"{asked.out}: {size / 2**20:.1f} MiB")
    if size > MOST:
        print(f"that is more than {MOST >> 20} MiB")
    return int(size > MOST)


def bundle(out: Path, *, pythons: tuple[str, ...] = PYTHONS, nccl: Path | None = None) -> int:
    """Write the archive to `out`; return its size in bytes.

    Raises:
        CalledProcessError: the wheel could not be built, or a package has no wheel for one of the `pythons`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, NAME)
        wheels = folder / "wheels"
        wheels.mkdir(parents=True)
        own = _built(Path(temporary, "source"), wheels)
        pins = [f"{name}=={metadata.version(name)}" for name in needed()]
        for python in pythons:
            _download(pins, python, wheels)
        (folder / "packages.txt").write_text("\n".join([*pins, own, ""]), encoding="utf-8")
        for path in _tracked(*_RAN):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)
        shutil.copyfile(Path(__file__).with_name("run_offline.py"), folder / "run.py")
        if nccl is not None:
            shutil.copyfile(nccl, folder / "libnccl.so.2.xz")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w:gz") as packed:
            packed.add(folder, NAME)
    return out.stat().st_size


def needed() -> tuple[str, ...]:
    """What pipeconform needs, and what that needs, but what is there: names of packages, ascending."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    todo, found = list(project["dependencies"]), set[str]()
    while todo:
        one = Requirement(todo.pop())
        name = canonicalize_name(one.name)
        if name in THERE | found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        todo += metadata.requires(name) or []
    return tuple(sorted(found))


def _built(source: Path, wheels: Path) -> str:
    """Build the wheel of the tracked files as they are now; return its name and version."""
    for path in _tracked(
        "pipeconform", "suites", "reference_impl", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"
    ):
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(wheels), str(source)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (wheel,) = wheels.glob("pipeconform-*.whl")
    name, version, *_ = wheel.name.split("-")
    return f"{name}=={version}"


def _download(pins: list[str], python: str, wheels: Path) -> None:
    platforms = [part for platform in _PLATFORMS for part in ("--platform", platform)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms),
            *("--dest", str(wheels), *pins),
        ],
        check=True,
    )


def _tracked(*patterns: str) -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return (line for line in listed.stdout.splitlines() if (ROOT / line).is_file())


if __name__ == "__main__":
    sys.exit(main())
