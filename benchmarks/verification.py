"""What it costs to verify a package, beside making it: the level's cases are drawn again and every field compared.

    python benchmarks/verification.py [--blocks N]

The package is that of the reference under two schedules, level Forward, made once by ``certify``. Whole commands, with
their start; ``pipeconform list`` is for scale: a command that imports neither torch nor Hypothesis.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from measure import ROOT, alternate, options, pipeconform, seconds, summary, table

ADAPTER = """
import dataclasses

from pipeconform.reference_impl.adapter import ReferenceAdapter


class MyAdapter(ReferenceAdapter):
    def describe(self):
        description = super().describe()
        chosen = tuple(one for one in description.capabilities.schedules if one.name in ("GPipe", "1F1B"))
        claims = dataclasses.replace(description.capabilities, schedules=chosen)
        return dataclasses.replace(description, name="my pipeline", capabilities=claims)
"""


def main():
    chosen = options(__doc__, blocks=5)
    with tempfile.TemporaryDirectory(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as name:
        folder = Path(name)
        (folder / "mine.py").write_text(ADAPTER, "utf-8")
        certify = (
            "certify",
            "--impl",
            "mine.py:MyAdapter",
            "--level",
            "forward",
            "--out",
            "mine.pipeconform.zip",
        )
        made = seconds(lambda: pipeconform(*certify, cwd=folder))
        verify, start = alternate(
            lambda: pipeconform("verify", "mine.pipeconform.zip", cwd=folder),
            lambda: pipeconform("list", cwd=folder),
            blocks=chosen.blocks,
        )
    table(
        (f"level Forward, two schedules, {chosen.blocks} blocks", "median [95 % interval]"),
        ("certify, once", f"{made:.1f} s"),
        ("verify", summary(verify, unit=" s", digits=2)),
        ("list", summary(start, unit=" s", digits=2)),
        ("verify over list", summary([a / b for a, b in zip(verify, start, strict=True)], digits=2)),
        ("verify over certify", summary([one / made for one in verify], digits=3)),
    )


if __name__ == "__main__":
    main()
