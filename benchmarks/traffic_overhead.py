"""What recording the traffic costs a step, memory in flight guarded: the same case with it and without.

    python benchmarks/traffic_overhead.py [--blocks N] [--steps N]

Two ranks, 8 microbatches, in two sizes: stages as the suite draws them, which are small, and twice as many
layers as it draws at most (messages of a few hundred bytes, so that what is done per message counts most); and
steps of some 50 to 100 ms with messages of 100 kB. Goal: at most 1.3 times the step without.
"""

from __future__ import annotations

import msgspec
from measure import options
from step_ranks import RECORDED, Record
from with_and_without import SMALL, compare

LARGE = (384, 32)


def main():
    chosen = options(__doc__, blocks=30, steps=10)
    compare(
        chosen,
        RECORDED,
        lambda engine, case, observed: msgspec.json.encode(Record(engine, case, observed, chosen.steps)),
        sizes=(SMALL, LARGE),
    )


if __name__ == "__main__":
    main()
