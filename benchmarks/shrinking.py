"""Making failing cases small: cuts of the case itself, as the product does it, against Hypothesis' shrinking.

    python benchmarks/shrinking.py [--executions N] [--seed N]

A dozen implementations that are wrong on purpose, each judged by the requirement it breaks under its schedule: of the
cases drawn from a fixed seed, the last one that fails is made small in both ways, with the same executions at most
(the time is not limited). A case is printed as ranks × stages per rank, steps, microbatches, blocks, width.
"""

from __future__ import annotations

import statistics
import time

from measure import options, table

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.minimise import Budget, minimise
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.simplify import simplify
from pipeconform.campaign.trial import faults
from pipeconform.case.draw.claimed import reachable
from pipeconform.case.focus import Limits
from pipeconform.case.simpler.candidates import weight
from pipeconform.case.simpler.scope import Scope
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

FAULTS = (
    "stale-activation",
    "rounded-to-bfloat16",
    "only-first-refreshed",
    "kwargs-shifted",
    "losses-reversed",
    "one-stage-scaled",
    "gradient-of-neighbour",
    "one-parameter-missing",
    "weight-part-twice",
    "accumulation-lost",
    "first-stage-not-updated",
    "eager-backward",
    "unmatched",
)
"""The last one hangs."""
CASES = 12
HANGS = 20


def main():
    chosen = options(__doc__, blocks=1, executions=300, seed=0)
    rows = []
    with Pools(preload=PRELOAD) as pools:
        for name in FAULTS:
            rows.append(compared(faults()[name], pools, chosen.executions, chosen.seed))
            print(f"{name}: {rows[-1]}", flush=True)
    hypothesis, cuts = ([row[way] for row in rows] for way in (1, 2))
    table(
        ("fault", "case found", "Hypothesis: executions, case", "cuts: executions, case"),
        *(
            (name, row[0], f"{row[1][0]}, {row[1][1]}", f"{row[2][0]}, {row[2][1]}")
            for name, row in zip(FAULTS, rows, strict=True)
        ),
    )
    ratios = [a[0] / b[0] for a, b in zip(hypothesis, cuts, strict=True)]
    middle = statistics.median(ratios)
    print(f"executions, Hypothesis over cuts: median {middle:.1f}, {min(ratios):.1f} to {max(ratios):.1f}")
    print(f"seconds: {sum(one[2] for one in hypothesis):.0f} and {sum(one[2] for one in cuts):.0f}")
    smaller = sum(b[3] < a[3] for a, b in zip(hypothesis, cuts, strict=True))
    larger = sum(b[3] > a[3] for a, b in zip(hypothesis, cuts, strict=True))
    print(f"cuts end in a simpler case {smaller} times, in a less simple one {larger} times")


def compared(fault, pools, executions, seed):
    """The case that was found, and for both ways executions, result, seconds and weight."""
    description = describe(pools, fault.reference)
    pools.idle_limit = description.capabilities.patience
    executor = Executor(implementation=fault.reference, description=description, pools=pools)
    capabilities = description.capabilities
    claim, judgement = capabilities.schedule(fault.schedule), JUDGEMENTS[fault.requirement]
    row, limits = requirement(fault.requirement), Limits(capabilities=capabilities)

    def outcomes(case):
        watched = {*judgement.observe, *(("waits",) if fault.expected_status == "hung" else ())}
        return judge(row, executor.execute(case, observe=watched), executor, thorough=False)

    for focus in judgement.foci(claim, capabilities):
        corpus = Corpus(limits=limits, schedule=claim, focus=focus, seed=seed, size=CASES)
        for case in reversed(drawn(corpus)) if reachable(limits, claim, focus) else ():
            found = outcomes(case) if judgement.applies(case) else ()
            if found:
                most = HANGS if found[0].status.value == "hung" else executions
                budget = Budget(executions=most)
                return both(corpus, case, found[0], outcomes, judgement, budget)
    raise SystemExit(f"{fault.name} is not shown by any case")


def both(corpus, case, outcome, outcomes, judgement, budget):
    """Make `case` small in both ways."""
    scope = Scope(limits=corpus.limits, claim=corpus.schedule, focus=corpus.focus)

    def check(candidate):
        alike = (outcome.status, outcome.finding.kind)
        found = outcomes(candidate) if judgement.applies(candidate) else ()
        return next((one for one in found if (one.status, one.finding.kind) == alike), None)

    def allowed(candidate):
        return judgement.applies(candidate) and scope.holds(candidate, origin=case)

    begun = time.monotonic()
    first = minimise(corpus, case, outcome, check, budget=budget)
    between = time.monotonic()
    second = simplify(case, outcome, check, allowed=allowed, budget=budget)
    ended = time.monotonic()
    return (
        told(case),
        (first.executions, told(first.case), between - begun, weight(first.case)),
        (second.executions, told(second.case), ended - between, weight(second.case)),
    )


def told(case):
    """A case in a few numbers."""
    blocks = sum(1 for _ in case.blocks())
    numbers = "+".join(str(run.num_microbatches) for run in case.runs[:4])
    more = "…" if len(case.runs) > 4 else ""
    return f"{case.num_ranks}×{case.stages_per_rank}, m {numbers}{more}, {blocks} blocks, width {case.model.width}"


if __name__ == "__main__":
    main()
