"""Installs pipeconform beside this file, from this archive alone, and runs ``python -m benchmarks.gpu``.

    python3 run.py [options of benchmarks.gpu, such as --within 560 or --out FOLDER]

With the Python that has torch and numpy. Nothing is written outside this folder and the results'.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever runs this has not installed anything yet
        print(f"pipeconform needs Python 3.11 or newer; this is {sys.version.split()[0]}")
        return 3
    lacking = [name for name in ("torch", "numpy", "pip") if importlib.util.find_spec(name) is None]
    if lacking:
        print(f"{sys.executable} has no {' and no '.join(lacking)}: use the Python that has torch")
        return 3
    installed = HERE / f"installed-{sys.version_info[0]}.{sys.version_info[1]}"
    if not installed.exists():
        install(installed)
    nccl = HERE / "libnccl.so.2.xz"
    paths = [str(installed), str(HERE), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.gpu"),
            *(["--nccl", str(nccl)] if nccl.exists() else []),
            *sys.argv[1:],
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=False,
    ).returncode


def install(folder: Path) -> None:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    packages = (HERE / "packages.txt").read_text(encoding="utf-8").split()
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--isolated", "--no-index", "--no-deps", "--no-cache-dir", "--no-warn-conflicts"),
            *("--find-links", str(HERE / "wheels"), "--target", str(part), *packages),
        ],
        check=True,
    )
    part.rename(folder)


if __name__ == "__main__":
    sys.exit(main())
