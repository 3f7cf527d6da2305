"""What a case costs on attached ranks over loopback, against the local pool, at p = 4.

    python benchmarks/attached.py [--blocks N] [--repeats N]

A block executes every case of `cases.json` with four pipeline ranks `repeats` times by `Executor.execute`:
ranks and oracle, nothing judged. Four agents stand on this machine, each with one rank, so that what is compared is
the way over TCP through an agent with the pipes of the fork server. Goal: at most 1.3 times the local pool.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import msgspec
from measure import ROOT, alternate, options, summary, table

from pipeconform.attach.hub import Hub
from pipeconform.attach.pools import Controller
from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case.case import Case
from pipeconform.ranks.devices import resolve
from pipeconform.ranks.pools import Pools

IMPLEMENTATION = "reference_impl.adapter:ReferenceAdapter"
SIZE = 4


def cases_of(size):
    cases = msgspec.json.decode((ROOT / "benchmarks" / "cases.json").read_bytes(), type=list[Case])
    return [case for case in cases if case.num_ranks == size]


def agents(address, token):
    environment = {**os.environ, "PIPECONFORM_TOKEN": token, "PYTHONPATH": str(ROOT)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "pipeconform.agent", "--controller", address],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(SIZE)
    ]


def block(executor, cases, repeats):
    for case in cases * repeats:
        verdicts = executor.execute(case).verdicts
        assert verdicts.ok, verdicts.describe()


def main():
    chosen = options(__doc__, blocks=30, repeats=5)
    sys.path.insert(0, str(ROOT))
    cases, token = cases_of(SIZE), secrets.token_hex(32)
    hub = Hub("127.0.0.1", 0, token=token.encode(), say=lambda text: None)
    processes = agents(hub.address, token)
    try:
        controller = Controller(hub, least=SIZE, patience=60.0, devices=resolve("cpu"), say=print)
        controller.gather(limit=60.0)
        with controller.pools(preload=PRELOAD) as remote, Pools(preload=PRELOAD) as local:
            description = describe(local, IMPLEMENTATION)
            attached, near = (
                Executor(implementation=IMPLEMENTATION, description=description, pools=pools)
                for pools in (remote, local)
            )
            for executor in (attached, near):
                block(executor, cases, 1)  # imports, caches
            ours, theirs = alternate(
                lambda: block(attached, cases, chosen.repeats),
                lambda: block(near, cases, chosen.repeats),
                blocks=chosen.blocks,
            )
    finally:
        hub.close()
        for process in processes:
            process.wait(20)
    number = len(cases) * chosen.repeats
    table(
        (f"{number} executions, p = {SIZE}, {chosen.blocks} blocks", "median [95 % interval]"),
        ("attached, per case", summary([one / number * 1000 for one in ours], unit=" ms", digits=1)),
        ("local, per case", summary([one / number * 1000 for one in theirs], unit=" ms", digits=1)),
        ("ratio, goal at most 1.3", summary([a / b for a, b in zip(ours, theirs, strict=True)])),
    )


if __name__ == "__main__":
    main()
