"""Wrapper cases on threads of one process against processes: verdicts, seconds and processor time per example.

    python benchmarks/thread_ranks.py [--blocks N] [--rounds N]

Two ranks, the cases of DPW-1 under every option, torch's DistributedDataParallel and the reference. The threads have a
process group of their own (`thread_group`): one rank runs at a time, with its own random numbers, and a hang is known
at once. Goal: three times the examples per second. It cannot be reached, which the processor time shows: an example
costs as much on threads as on both processes together, since it is building, wrapping and showing a module that costs
and not what is sent; and threads of one interpreter share one core, where processes have one each.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import msgspec
from measure import options, summary, table

from pipeconform.ranks.crew import Crew
from pipeconform.ranks.pool import Pool
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.verdict import Raised, Returned, Stuck, VerdictVector
from pipeconform.replication.campaign import PRELOAD, WrapperCampaign, describe
from pipeconform.replication.implementations import resolve
from pipeconform.replication.job import Job
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS

RANKS = 2
GOAL = 3.0
HERE = str(Path(__file__).resolve().parent)


class End(msgspec.Struct):
    """What became of a thread."""

    value: bytes = b""
    error: str = ""
    waits: str = ""


def execute(context, payload):
    """Run every rank of a job on a thread."""
    from thread_group import on_threads

    from pipeconform.replication.worker import execute as execute_rank

    def run(rank):
        return execute_rank(RankContext(rank=rank, world_size=RANKS, device="cpu"), payload)

    ends = on_threads(run, ranks=RANKS)
    told = [End(one.value or b"", "" if one.error is None else repr(one.error), one.waits) for one in ends]
    return msgspec.msgpack.encode(told)


def on_threads(pool, job):
    """A verdict per rank; a process whose thread is stuck is replaced."""
    vector = pool.run("thread_ranks:execute", msgspec.msgpack.encode(job), time_limit=120.0)
    if not vector.ok:
        return VerdictVector((vector[0],) * RANKS)
    ends = msgspec.msgpack.decode(vector.values[0], type=list[End])
    if any(end.waits for end in ends):
        pool.restart()
    return VerdictVector(tuple(verdict(end) for end in ends))


def verdict(end):
    if end.waits:
        return Stuck(seconds=0.0, why=f"nobody can go on: waits for {end.waits}")
    return Raised(type="error", message=end.error) if end.error else Returned(value=end.value)


def processor_seconds(pids):
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def spent(run, cases, rounds, pids):
    """Seconds and processor seconds per example."""
    before, begun = processor_seconds(pids), time.perf_counter()
    for _ in range(rounds):
        for case in cases:
            run(case)
    count = rounds * len(cases)
    return (time.perf_counter() - begun) / count, (processor_seconds(pids) - before) / count


def compare(name, pools, pool, blocks, rounds):
    """Rows of the table: verdicts first, then the ratios of each block."""
    reference = resolve(name)
    description = describe(pools, reference)
    campaign = WrapperCampaign(implementation=name, reference=reference, description=description, pools=pools)
    drawn = WRAPPER_JUDGEMENTS["DPW-1"].drawn(description.claims, seed=0)
    cases = [case for case in drawn if case.ranks == RANKS]

    def threads(case):
        return on_threads(pool, Job(implementation=reference, case=case))

    def kinds(case, vector):
        return [(one.status, one.finding.kind) for one in campaign.outcomes("DPW-1", case, vector)]

    equal = sum(kinds(case, threads(case)) == kinds(case, campaign.execute(case)) for case in cases)
    seconds, processor, costs = [], [], []
    for block in range(blocks):
        both = [(threads, pool.pids), (campaign.execute, pools.of_size(RANKS).pids)]
        order = list(reversed(both)) if block % 2 else both
        found = {run: spent(run, cases, rounds, pids) for run, pids in order}
        (wall, cpu), (wall_processes, cpu_processes) = found[threads], found[campaign.execute]
        seconds.append(wall_processes / wall)
        processor.append(cpu_processes / cpu)
        costs.append(1e3 * cpu)
    return (
        (f"{name}: same verdicts", f"{equal} of {len(cases)}"),
        (f"{name}: examples per second, threads / processes, goal {GOAL}", summary(seconds)),
        (f"{name}: processor time, processes / threads", summary(processor)),
        (f"{name}: processor time of an example on threads", f"{statistics.median(costs):.1f} ms"),
    )


def main():
    chosen = options(__doc__, blocks=5, rounds=5)
    sys.path.insert(0, HERE)
    preload = (*PRELOAD, "pipeconform.adapters.torch_wrappers", "pipeconform.reference_impl.wrapper_adapter")
    with Pools(preload=preload) as pools:
        pool = Pool(
            Crew(pools.server, size=1, backend=None, devices=pools.devices.assignment(1)),
            idle_limit=pools.idle_limit,
        )
        try:
            rows = [
                row
                for name in ("torch-ddp", "reference-wrapper")
                for row in compare(name, pools, pool, chosen.blocks, chosen.rounds)
            ]
        finally:
            pool.close()
    table(*rows)


if __name__ == "__main__":
    main()
