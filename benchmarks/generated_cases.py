"""Generated cases on the reference: every one passes every requirement that has something to say about it.

    python benchmarks/generated_cases.py [--cases N] [--seed S] [--ranks P] [--out FILE]

Cases are drawn as a run draws them, schedule by schedule and subject by subject, from seed S on upwards until N
different ones were judged. FILE keeps what has been done, so a run that was stopped goes on; exit code 1 when a case
does not pass. Requirements that execute a case several times are left to `pipeconform run`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

from measure import ROOT

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.judging import judge
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case.focus import Focus, Limits, is_claimed
from pipeconform.case.sizes import reachable
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirements

IMPLEMENTATION = "reference"
EACH = 8
"""Cases drawn per schedule, subject and seed."""

TOGETHER = frozenset({"memory", "reductions", "timeline", "traffic"})
"""What one execution can record at once; the rest changes what the ranks do, so it has an execution of its own."""


def is_claimed_size(case, claim):
    """Edge sizes are also drawn where the claim ends; there only who draws them has something to say."""
    return all(
        claim.takes(
            num_ranks=case.num_ranks,
            stages_per_rank=case.stages_per_rank,
            num_microbatches=run.num_microbatches,
        )
        for run in case.runs
    )


def asked(case, claim, focus, capabilities):
    """The requirements that are judged."""
    inside = is_claimed_size(case, claim)
    return [
        row
        for row in requirements()
        if (judgement := JUDGEMENTS.get(row.id)) is not None
        and not judgement.repeats
        and "rounds" not in judgement.observe
        and judgement.applies(case)
        and (foci := judgement.foci(claim, capabilities))
        and (inside or focus in foci)
    ]


def executions(rows):
    """What to observe, and the requirements that are judged by it."""
    own = [(JUDGEMENTS[row.id].observe, row) for row in rows]
    together = [(observe, row) for observe, row in own if observe <= TOGETHER]
    if together:
        yield frozenset().union(*(observe for observe, _ in together)), [row for _, row in together]
    for observe, row in own:
        if not observe <= TOGETHER:
            yield observe, [row]


def judged(executor, claim, focus, case):
    """Execute once per set of observations; yields what is not met, in words."""
    for observe, rows in executions(asked(case, claim, focus, executor.capabilities)):
        execution = executor.execute(case, observe=observe)
        for row in rows:
            for outcome in judge(row, execution, executor):
                finding = outcome.finding
                yield f"{row.id} {outcome.status} under {case.schedule}: {finding.kind} ({finding.where()})"


def corpora(executor, first_seed, most_ranks):
    """Without end: schedule, name of the corpus, and the corpus."""
    capabilities = executor.capabilities
    limits = Limits(capabilities=capabilities, max_ranks=most_ranks)
    for seed in itertools.count(first_seed):
        for claim in capabilities.schedules:
            for focus in Focus:
                if is_claimed(focus, claim, capabilities) and reachable(limits, claim, focus):
                    corpus = Corpus(limits=limits, schedule=claim, focus=focus, seed=seed, size=EACH)
                    yield claim, f"{seed}/{claim.name}/{focus}", corpus


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "generated_cases.json")
    chosen = parser.parse_args()
    state = {"seed": chosen.seed, "ranks": chosen.ranks, "corpora": [], "cases": [], "wrong": []}
    if chosen.out.exists():
        kept = json.loads(chosen.out.read_text())
        same = (kept["seed"], kept["ranks"]) == (chosen.seed, chosen.ranks)
        state = kept if same else state
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    done, known, begun = set(state["corpora"]), set(state["cases"]), time.monotonic()
    with Pools(preload=PRELOAD) as pools:
        executor = Executor(
            implementation=IMPLEMENTATION, description=describe(pools, IMPLEMENTATION), pools=pools
        )
        for claim, name, corpus in corpora(executor, chosen.seed, chosen.ranks):
            if len(known) >= chosen.cases:
                break
            if name in done:
                continue
            for case in drawn(corpus):
                if case.digest not in known and len(known) < chosen.cases:
                    known.add(case.digest)
                    state["wrong"] += [
                        f"{case.digest}: {one}" for one in judged(executor, claim, corpus.focus, case)
                    ]
            done.add(name)
            chosen.out.write_text(json.dumps(state | {"corpora": sorted(done), "cases": sorted(known)}))
            spent = time.monotonic() - begun
            print(f"{len(known)} cases, {len(state['wrong'])} wrong, {spent:.0f} s: {name}", file=sys.stderr)
    print(f"{len(known)} cases, {len(state['wrong'])} that do not pass")
    for one in state["wrong"]:
        print(f"  {one}")
    return int(bool(state["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
