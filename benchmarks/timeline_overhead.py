"""What observing the timeline costs a step: the same case with it and without.

    python benchmarks/timeline_overhead.py [--blocks N] [--steps N]

Two ranks, 8 microbatches; stages as the suite draws them, which are small, and twice as many layers as it
draws at most. Goal: at most 1.3 times the step without.
"""

from __future__ import annotations

import msgspec
from measure import options
from step_ranks import WATCHED, Watch
from with_and_without import compare


def main():
    chosen = options(__doc__, blocks=30, steps=10)
    compare(
        chosen,
        WATCHED,
        lambda engine, case, observed: msgspec.json.encode(Watch(engine, case, observed, chosen.steps)),
    )


if __name__ == "__main__":
    main()
