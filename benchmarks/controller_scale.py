"""How many agents one controller carries: joining, cases per second, memory, fairness, a lost agent.

    python benchmarks/controller_scale.py [--agents 64,128,256,512] [--rounds N] [--json FILE]

All agents are simulated by one more process over loopback: they speak the real protocol with the real handshake, say
that they fork ranks, and answer cases with what four real ranks of the reference have answered before, byte for
byte. What is measured is the controller alone; its processor time is printed apart from the clock, which the
simulation shares. Two shapes: many worlds of four ranks at the same time, and one world of all agents.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import secrets
import select
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from measure import ROOT, table
from simulated_agents import PER_HOST, simulate

from pipeconform.attach.hub import Hub
from pipeconform.attach.pools import Controller
from pipeconform.campaign.executor import RANK_TASK
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case.case import Case
from pipeconform.execute.job import Job
from pipeconform.ranks.devices import resolve
from pipeconform.ranks.pools import Pools

IMPLEMENTATION = "reference_impl.adapter:ReferenceAdapter"
SMALL = 4  # ranks of a small world
GUARD = 300.0  # seconds; nothing here takes as long unless it hangs
HELD = "nobody:answers"  # a task that the simulation does not know runs until its rank is lost


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a controller with so many agents came to; times in seconds, memory in bytes."""

    agents: int
    join: float
    join_cpu: float
    memory_per_agent: float
    """Resident, when all have joined."""
    memory_peak_per_agent: float
    """Likewise after everything else."""
    form_small: float
    """Forming worlds of four on all agents."""
    small_per_second: float
    small_cpu: float
    """Processor time of the controller per case of four ranks."""
    fewest: int
    most: int
    """Answers of the agent that had to give the fewest, and the most, in worlds of four."""
    rotated: int
    """Agents that were used when one world of four was formed anew a quarter as often as there are agents."""
    form_large: float
    """Forming one world of all agents."""
    large: float
    large_cpu: float
    """A case of one world of all agents."""
    lost: float
    """From an agent's end in a case of all to the verdict that names it."""
    whole: float
    """From its coming back to the next verdict of a world of all."""
    watched_cpu: float
    """Processor time per second while every agent has a rank that computes."""


def table_of_answers():
    """What four real ranks answer to the cases for four in `cases.json`, by the digest of what they were given."""
    cases = msgspec.json.decode((ROOT / "benchmarks" / "cases.json").read_bytes(), type=list[Case])
    payloads = [
        msgspec.msgpack.encode(Job(implementation=IMPLEMENTATION, case=case))
        for case in cases
        if case.num_ranks == SMALL and case.world.size == SMALL
    ]
    with Pools(preload=PRELOAD) as pools:
        answers = [pools.of_size(SMALL).run(RANK_TASK, one, time_limit=60.0).values for one in payloads]
    return payloads, {
        hashlib.sha256(one).hexdigest(): list(found) for one, found in zip(payloads, answers, strict=True)
    }


def resident():
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


class Watched:
    """Time and processor time of what is done inside."""

    def __enter__(self):
        self._begun, self._used = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *ended):
        self.seconds = time.perf_counter() - self._begun
        self.cpu = time.process_time() - self._used


class Agents:
    """The process that simulates them."""

    def __init__(self, hub, number, answers, token):
        with tempfile.NamedTemporaryFile(suffix=".msgpack", delete=False) as file:
            file.write(msgspec.msgpack.encode(answers))
        self.file = Path(file.name)
        command = [sys.executable, __file__, "--serve", hub.address, "--agents", str(number)]
        self.process = subprocess.Popen(
            [*command, "--table", file.name],
            env={**os.environ, "PIPECONFORM_TOKEN": token, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "here"

    def order(self, text):
        """Tell it what to do."""
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def answer(self):
        """The line that it says."""
        ready, _, _ = select.select([self.process.stdout], [], [], GUARD)
        assert ready, "the simulation is silent"
        return self.process.stdout.readline().strip()

    def counts(self):
        """Cases answered so far, by agent."""
        self.order("counts")
        return json.loads(self.answer())

    def close(self):
        """End it."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)
        self.file.unlink()


def until(hub, condition):
    deadline = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < deadline, "what was waited for never came"
        hub.step(0.05)


def at_once(pools, payload):
    """A case on every pool at the same time."""
    for pending in [pool.start(RANK_TASK, payload, time_limit=GUARD) for pool in pools]:
        vector = pending.wait()
        assert vector.ok, vector.describe()


def measure(number, payloads, answers, *, rounds):
    """Everything about a controller with `number` agents."""
    token, lines = secrets.token_hex(32), []
    hub = Hub("127.0.0.1", 0, token=token.encode(), say=lines.append)
    agents = Agents(hub, number, answers, token)
    try:
        controller = Controller(hub, least=1, patience=GUARD, devices=resolve("cpu"), say=lines.append)
        before = resident()
        with Watched() as join:
            agents.order("join")
            until(hub, lambda: len(hub.agents) == number)
        controller.gather(limit=0.0)
        joined = resident() - before
        with controller.pools(preload=()) as pools:
            small = _small(pools, agents, payloads, number=number, rounds=rounds)
            rotated = _rotation(pools, agents, payloads, times=number // SMALL)
            large = _large(pools, agents, hub, payloads, number=number, rounds=rounds)
        peak = resident() - before
    finally:
        hub.close()
        agents.close()
    return Measured(
        agents=number,
        join=join.seconds,
        join_cpu=join.cpu,
        memory_per_agent=joined / number,
        memory_peak_per_agent=peak / number,
        rotated=rotated,
        **small,
        **large,
    )


def _small(pools, agents, payloads, *, number, rounds):
    with Watched() as forming:
        worlds = [pools.bare(SMALL) for _ in range(number // SMALL)]
        for world in worlds:
            world.wait_until_formed()
    before = agents.counts()
    with Watched() as judging:
        for turn in range(rounds):
            at_once(worlds, payloads[turn % len(payloads)])
    given = [after - earlier for earlier, after in zip(before, agents.counts(), strict=True)]
    for world in worlds:
        world.close()
    cases = rounds * len(worlds)
    return {
        "form_small": forming.seconds,
        "small_per_second": cases / judging.seconds,
        "small_cpu": judging.cpu / cases,
        "fewest": min(given),
        "most": max(given),
    }


def _rotation(pools, agents, payloads, *, times):
    """One world after another, as a run forms them: who got work?"""
    before = agents.counts()
    world = pools.bare(SMALL)
    for _ in range(times):
        at_once([world], payloads[0])
        world.restart()
    world.close()
    return sum(after > earlier for earlier, after in zip(before, agents.counts(), strict=True))


def _large(pools, agents, hub, payloads, *, number, rounds):
    with Watched() as forming:
        world = pools.bare(number)
        world.wait_until_formed()
    with Watched() as judging:
        for turn in range(rounds):
            at_once([world], payloads[turn % len(payloads)])
    pending = world.start(HELD, b"", time_limit=GUARD)
    until(hub, lambda: all(one.pulse is not None for one in world._crew.group.channels))
    with Watched() as watching:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            hub.step(0.1)
    begun = time.perf_counter()
    agents.order(f"drop {number // 2}")
    vector = pending.wait()
    lost = time.perf_counter() - begun
    assert f"simulated-{number // 2 // PER_HOST} " in vector.lost, vector.lost
    begun = time.perf_counter()
    agents.order(f"back {number // 2}")
    at_once([world], payloads[0])
    whole = time.perf_counter() - begun
    world.close()
    return {
        "form_large": forming.seconds,
        "large": judging.seconds / rounds,
        "large_cpu": judging.cpu / rounds,
        "lost": lost,
        "whole": whole,
        "watched_cpu": watching.cpu / watching.seconds,
    }


def show(found):
    """One column per number of agents."""

    def row(title, text):
        return (title, *map(text, found))

    bytes_of = statistics.median(len(one) for one in show.sizes) if show.sizes else 0
    print(f"an answer has {bytes_of / 1024:.1f} KiB; ratios of neighbours show the slope, 2 is linear")
    table(
        row("agents", lambda m: str(m.agents)),
        row("all joined, s (controller's processor)", lambda m: f"{m.join:.2f} ({m.join_cpu:.2f})"),
        row("memory per agent, KiB, joined", lambda m: f"{m.memory_per_agent / 1024:.1f}"),
        row("memory per agent, KiB, at the end", lambda m: f"{m.memory_peak_per_agent / 1024:.1f}"),
        row("worlds of 4: formed, s", lambda m: f"{m.form_small:.2f}"),
        row("worlds of 4: cases per second", lambda m: f"{m.small_per_second:.0f}"),
        row("worlds of 4: ms of processor per case", lambda m: f"{m.small_cpu * 1e3:.2f}"),
        row("worlds of 4: answers per agent, fewest–most", lambda m: f"{m.fewest}–{m.most}"),
        row("one world of 4 after another: agents used", lambda m: f"{m.rotated}"),
        row("a world of all: formed, s", lambda m: f"{m.form_large:.2f}"),
        row("a world of all: ms per case", lambda m: f"{m.large * 1e3:.0f}"),
        row("a world of all: ms of processor per case", lambda m: f"{m.large_cpu * 1e3:.0f}"),
        row("a lost agent: ms to the verdict", lambda m: f"{m.lost * 1e3:.0f}"),
        row("it is back: ms to the next verdict", lambda m: f"{m.whole * 1e3:.0f}"),
        row("watching all: share of a processor", lambda m: f"{m.watched_cpu:.2f}"),
    )


show.sizes = ()


def _measured(number, payloads, answers, rounds):
    gc.collect()
    gc.freeze()
    return measure(number, payloads, answers, rounds=rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", default="64,128,256,512")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        answers = msgspec.msgpack.decode(chosen.table.read_bytes())
        simulate(chosen.serve, int(chosen.agents), answers)
        return
    sys.path.insert(0, str(ROOT))
    payloads, answers = table_of_answers()
    show.sizes = [one for several in answers.values() for one in several]
    found = []
    for number in map(int, chosen.agents.split(",")):
        # a process of its own: what another has taken from the system it does not give back
        with multiprocessing.get_context("fork").Pool(1) as process:
            found.append(process.apply(_measured, (number, payloads, answers, chosen.rounds)))
        print(f"{number} agents are measured", file=sys.stderr)
    show(found)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
