"""How fast tables are generated, lowered, verified and simulated, at the size torch can do and at thousands of ranks.

    python benchmarks/schedule_tables.py [--blocks N]   # both sizes, and torch's simulation beside ours
    python benchmarks/schedule_tables.py --ranks 256    # one size (with --stages V --microbatches M), without torch

Entries count every row, communication included. Rates are of processor time, so one core's. The large size
runs in a process of its own, whose wall time and peak memory are printed. The ratio to torch's
`_simulate_comms_compute` is taken block by block, on one table.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from measure import alternate, options, summary, table

from pipeconform.schedule import Delivery, generate, lower, simulate, verify

FAMILY = "interleaved_one_f_one_b"
BESIDE_TORCH = (64, 4, 256)
LARGE = (1024, 4, 1024)


def main():
    given = options(__doc__, blocks=3, ranks=0, stages=LARGE[1], microbatches=LARGE[2])
    if given.ranks:
        rates(given.ranks, given.stages, given.microbatches)
        return
    ours = rates(*BESIDE_TORCH)
    beside_torch(ours, blocks=given.blocks)
    sizes = zip(("--ranks", "--stages", "--microbatches"), map(str, LARGE), strict=True)
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, *(word for pair in sizes for word in pair)], check=True)


def rates(p, v, m):
    """Print the rates of one size; return its table with communication."""
    print(f"interleaved 1F1B, p={p} v={v} m={m}")
    begun, rows = time.perf_counter(), []

    def timed(name, call):
        begin = time.process_time()
        result = call()
        rows.append((name, time.process_time() - begin))
        return result

    size = {"num_ranks": p, "stages_per_rank": v, "num_microbatches": m}
    plain = timed("generate", lambda: generate(FAMILY, **size))
    made = timed("lower", lambda: lower(plain))
    for delivery in Delivery:
        found = timed(f"verify, {delivery.value}", lambda delivery=delivery: verify(made, strictest=delivery))
        assert not found
    timed("simulate", lambda: simulate(made).makespan)
    wall = time.perf_counter() - begun
    entries = {"generate": plain.num_entries}
    table(
        *(
            (name, f"{spent:8.2f} s", f"{entries.get(name, made.num_entries) / spent:12,.0f} entries/s")
            for name, spent in rows
        )
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{made.num_entries:,} entries, {made.num_bytes / made.num_entries:.1f} bytes each; all in {wall:.0f} s "
        f"of wall time, peak memory {peak:.2f} GiB\n"
    )
    return made


def beside_torch(made, *, blocks):
    from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

    order = {rank: [_Action.from_str(str(action)) for action in made[rank]] for rank in range(len(made))}
    theirs, ours = alternate(
        lambda: _simulate_comms_compute(order, lambda stage: made.placement[stage], made.num_stages),
        lambda: simulate(made).makespan,
        blocks=blocks,
    )
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    table(
        ("torch, simulate", summary(theirs, unit=" s", digits=2)),
        ("ours, simulate", summary(ours, unit=" s", digits=3)),
        ("torch / ours", summary(ratios, digits=0)),
    )
    print()


if __name__ == "__main__":
    main()
