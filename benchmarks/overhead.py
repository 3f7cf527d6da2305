"""What the harness costs: pool, oracle and judge over the same work in a bare loop on the same processes.

    python benchmarks/overhead.py [--blocks N]

A block is the whole of `cases.json`. The harness executes every case of it by `Executor.execute` and
judges it by every requirement that one execution can answer; the bare loop is in `bare.py`. Goal: at most
1.5 times the bare loop.
"""

from __future__ import annotations

import msgspec
from bare import ORACLE, RANKS
from measure import ROOT, alternate, options, summary, table

from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.judging import judge
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case.case import Case
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirements

IMPLEMENTATION = "torch"
SECONDS = 600.0


def stored_cases():
    cases = msgspec.json.decode((ROOT / "benchmarks" / "cases.json").read_bytes(), type=list[Case])
    return sorted(cases, key=lambda case: case.world.size)


def judgements(cases):
    """The requirements that one execution of each case answers, repetitions and other observations apart."""
    found = {}
    for case in cases:
        found[case.digest] = [
            requirement
            for requirement in requirements()
            if (judgement := JUDGEMENTS[requirement.id]).applies(case)
            and not judgement.repeats
            and not judgement.observe
        ]
    return found


class Harness:
    """Executes and judges case by case, as a run does."""

    def __init__(self, executor, cases):
        self.executor, self.cases = executor, cases
        self.applies = judgements(cases)
        self.violations = set()

    def block(self):
        """All cases once."""
        for case in self.cases:
            execution = self.executor.execute(case)
            for requirement in self.applies[case.digest]:
                for outcome in judge(requirement, execution, self.executor):
                    self.violations.add((requirement.id, case.schedule, outcome.finding.kind))


class Bare:
    """Has the ranks and the oracle loop over all cases of a world size."""

    def __init__(self, pools, cases):
        self.pools = pools
        self.payloads = {
            size: msgspec.json.encode([case for case in cases if case.world.size == size])
            for size in sorted({case.world.size for case in cases})
        }

    def block(self):
        """All cases once."""
        for size, payload in self.payloads.items():
            oracle = self.pools.oracle.start(ORACLE, payload, time_limit=SECONDS)
            vector = self.pools.of_size(size).run(RANKS, payload, time_limit=SECONDS)
            assert vector.ok, vector.describe()
            answered = oracle.wait()
            assert answered.ok, answered.describe()


def main():
    chosen = options(__doc__, blocks=30)
    cases = stored_cases()
    with Pools(preload=(*PRELOAD, "bare")) as pools:
        executor = Executor(
            implementation=IMPLEMENTATION, description=describe(pools, IMPLEMENTATION), pools=pools
        )
        harness, bare = Harness(executor, cases), Bare(pools, cases)
        harness.block()  # imports, caches
        bare.block()
        ours, theirs = alternate(harness.block, bare.block, blocks=chosen.blocks)
    count = sum(map(len, harness.applies.values()))
    table(
        (f"{len(cases)} cases, {count} judgements, {chosen.blocks} blocks", "median [95 % interval]"),
        ("harness: pool, oracle, judge", summary(ours, unit=" s")),
        ("bare loop", summary(theirs, unit=" s")),
        ("ratio, goal at most 1.5", summary([a / b for a, b in zip(ours, theirs, strict=True)])),
    )
    for violation in sorted(harness.violations):
        print("violation, judged at a cost of its own:", *violation)


if __name__ == "__main__":
    main()
