from __future__ import annotations

import subprocess
import sys

import pytest

from pipeconform.ranks.huge_pages import use_huge_pages

SIZE = 2 << 20


def test_memory_keeps_its_contents_in_huge_pages():
    contents = bytearray(range(256)) * (8 * SIZE // 256)

    use_huge_pages()

    assert contents == bytearray(range(256)) * (8 * SIZE // 256)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is moved")
def test_what_is_moved_is_in_huge_pages():
    program = (
        "from pipeconform.ranks.huge_pages import use_huge_pages\n"
        f"held = bytearray({32 * SIZE})\n"
        "held[::4096] = bytes(len(held[::4096]))\n"
        "moved = use_huge_pages()\n"
        "lines = open('/proc/self/smaps_rollup').read().splitlines()\n"
        "print(moved, 1024 * int(next(one for one in lines if 'AnonHuge' in one).split()[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    moved, huge = map(int, done.stdout.split())
    if not moved:
        pytest.skip("this kernel moves none")
    assert huge >= 16 * SIZE
