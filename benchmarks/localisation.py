"""What finding the first wrong tensor costs: an execution for that, with its comparisons, against an ordinary one.

    python benchmarks/localisation.py [--blocks N]

The cases are those of `cases.json` without a front end, on torch's schedules. The ordinary execution is judged by
nobody. No verdict waits for a localisation: it runs once per violation that is reported.
"""

from __future__ import annotations

from measure import alternate, options, summary, table
from overhead import IMPLEMENTATION, stored_cases

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.preload import PRELOAD
from pipeconform.judge.localise.localisation import locate
from pipeconform.ranks.pools import Pools


def main():
    chosen = options(__doc__, blocks=15)
    cases = [case for case in stored_cases() if case.model.split is None and not case.is_mistaken]
    with Pools(preload=PRELOAD) as pools:
        executor = Executor(
            implementation=IMPLEMENTATION, description=describe(pools, IMPLEMENTATION), pools=pools
        )
        cases = [case for case in cases if executor.execute(case).outcome() is None]
        compared = []

        def ordinary():
            for case in cases:
                executor.execute(case)

        def localising():
            compared.clear()
            for case in cases:
                execution = executor.execute(case, observe=("gradients",))
                evidence = executor.evidence(execution, flow=True)
                found = locate(evidence, executor.evidence(execution, copied=True, flow=True))
                compared.append(found.compared)

        localising()  # warms up; the oracle's answers are then known, as its bounds are after a verdict
        theirs, ours = alternate(ordinary, localising, blocks=chosen.blocks)
    table(
        (f"{len(cases)} cases, {sum(compared)} tensors, {chosen.blocks} blocks", "median [95 % interval]"),
        ("ordinary executions", summary(theirs, unit=" s")),
        ("localising ones", summary(ours, unit=" s")),
        ("ratio", summary([a / b for a, b in zip(ours, theirs, strict=True)])),
    )


if __name__ == "__main__":
    main()
