import shutil
import subprocess
import sys

import pytest

from pipeconform.ranks.probing import driver_release, nccl_release

OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22)  Tue May 20 2026
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:01:18 UTC 2025
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
LIBRARY = "int ncclGetVersion(int *version) { *version = %d; return %d; }"
ASKED = "from pipeconform.ranks.probing import nccl_release; print(nccl_release())"


@pytest.mark.parametrize(
    ("text", "release"),
    [(OPEN, "580.159.04"), (CLOSED, "570.124.06"), ("", None), ("GCC version:  gcc version 12.2.0 ", None)],
)
def test_the_driver_is_named_by_open_and_by_closed_kernel_modules(text, release):
    assert driver_release(text) == release


def test_no_nccl_is_named_where_none_is_loaded():
    assert nccl_release() is None


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
@pytest.mark.parametrize(
    ("number", "code", "release"), [(23007, 0, (2, 30, 7)), (21805, 0, (2, 18, 5)), (1, 2, None)]
)
def test_the_nccl_that_is_named_is_the_one_that_is_preloaded(tmp_path, number, code, release):
    source, library = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text(LIBRARY % (number, code))
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", library, source], check=True, timeout=60
    )
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        env={"LD_PRELOAD": str(library), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(release)
