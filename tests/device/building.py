"""Compiles the test device once; ``python -m tests.device.building`` prints what a shell needs to use it."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["VENDOR", "MissingCompilerError", "build", "environment"]

VENDOR = Path(__file__).parent / "vendor"
"""The folder with the device's package, as pip would have installed it."""

# in a process of its own: loading the extension makes the device exist
_BUILD = """
import json, sys
from torch.utils.cpp_extension import load
load(**json.loads(sys.argv[1]))
"""


_TOGETHER = (
    ("device.cpp", "operators.cpp", "autocast.cpp", "backend.cpp", "module.cpp"),
    ("memory.cpp", "streams.cpp", "switches.cpp", "transport.cpp"),
)
"""Compiled as one: headers take most of the time, those of torch in the first files, the library's in the others."""


class MissingCompilerError(RuntimeError):
    """No C++ compiler is installed."""


def build() -> Path:
    """Compile the device unless that was done before; return the file that is loaded.

    Raises:
        MissingCompilerError: there is no C++ compiler.
        RuntimeError: the compiler, or ninja, failed.
    """
    places = _places()
    library: Path = places.library()
    if library.exists():
        return library
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise MissingCompilerError(f"there is no C++ compiler ({compiler})")
    library.parent.mkdir(parents=True, exist_ok=True)
    with _alone(library.parent / "building"):
        if not library.exists():
            _compile(places, library.parent)
    return library


def environment(*switches: str) -> dict[str, str]:
    """The variables with which torch loads the device, with these properties switched on."""
    path = os.pathsep.join(filter(None, [str(VENDOR), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path, "TESTDEV_SWITCHES": ",".join(switches)}


def _places() -> Any:
    """The package's module that says where the library lies; importing the package would import torch with it."""
    spec = importlib.util.spec_from_file_location("testdev_library", VENDOR / "testdev" / "library.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _sources(sources: Path, folder: Path) -> list[Path]:
    """What is compiled: the sources, and files in the build's folder that stand for several of them."""
    alone = {path for path in sources.glob("*.cpp") if not any(path.name in names for names in _TOGETHER)}
    joined = []
    for names in _TOGETHER:
        joined.append(folder / f"with_{names[0]}")
        joined[-1].write_text("".join(f'#include "{sources / name}"\n' for name in names))
    return [*sorted(alone), *joined]


def _compile(places: Any, folder: Path) -> None:
    for left in folder.glob("lock"):  # of a build that was ended
        left.unlink()
    asked = {
        "name": places.NAME,
        "sources": [str(path) for path in _sources(places.SOURCES, folder)],
        "extra_cflags": ["-O1", "-g0", "-Wall"],
        "build_directory": str(folder),
    }
    ninja = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, json.dumps(asked)],
        env={**os.environ, "PATH": ninja, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the device did not compile:\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    build()
    for name, value in environment("nccl").items():
        print(f"export {name}={value}")
