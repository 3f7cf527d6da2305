"""Judges every fault of the reference by all requirements, one after the other, in the same warm processes."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

import pipeconform
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.campaign.known_answers import KnownAnswers
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.status import with_causes
from pipeconform.campaign.telling import environment_of, implementation_of
from pipeconform.campaign.trial import Fault
from pipeconform.errors import ContractError, HarnessError
from pipeconform.ranks.pools import Pools
from pipeconform.report.result import Cell, Result, Run, Totals
from pipeconform.spec import STANDARD_VERSION, Requirement, profile
from pipeconform.spec.catalogue import requirements

__all__ = ["run"]

RANKS = (1, 4)
SEED = 0
_BOUNDS_KEPT = 4096


def run(faults: Iterable[Fault], pools: Pools, out: Path) -> None:
    """Write one result file per fault; those that are there are not judged again."""
    out.mkdir(parents=True, exist_ok=True)
    known_answers = KnownAnswers(most=_BOUNDS_KEPT)  # the faults share most of their cases
    for fault in faults:
        file = out / f"{fault.name}.json"
        if file.exists():
            continue
        begun = time.monotonic()
        result = judged(fault, pools, known_answers)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.json.encode(result))
        part.replace(file)
        broken = [f"{c.requirement} {c.status}" for c in result.cells if c.violations or c.status == "error"]
        took = time.monotonic() - begun
        print(f"{fault.name} ({fault.requirement}), {took:.0f} s: {', '.join(broken)}", file=sys.stderr)


def judged(fault: Fault, pools: Pools, known_answers: KnownAnswers) -> Result:
    """The result of judging a fault at smoke, under the schedule with which it shows."""
    begun = time.monotonic()
    description = describe(pools, fault.reference)
    target = PipelineTarget.of(
        description, profile=profile("smoke"), ranks=RANKS, seed=SEED, schedules=(fault.schedule,)
    )
    runner = runner_of(description, implementation=fault.reference, pools=pools, known_answers=known_answers)
    campaign = Campaign(target=target, runners={"default": runner}, implementation=fault.reference)
    errors = fault.requirement.startswith("ERR")
    rows = [row for row in requirements() if errors or not row.id.startswith("ERR")]
    cells = with_causes([_cell(campaign, row, fault.schedule) for row in rows])
    return Result(
        product_version=pipeconform.__version__,
        standard_version=STANDARD_VERSION,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=environment_of(campaign),
        implementation=implementation_of(campaign),
        run=Run(
            profile="smoke",
            seed=SEED,
            corpus=target.profile.corpus,
            search=0,
            schedules=(fault.schedule,),
            max_ranks=RANKS[1],
            seconds=round(time.monotonic() - begun, 1),
        ),
        totals=Totals(
            judgements=sum(cell.judgements for cell in cells),
            executions=sum(campaign.executed.values()),
            distinct_cases=len(campaign.executed),
            distinct_cases_several_ranks=sum(p > 1 for p in campaign.num_ranks.values()),
        ),
        cells=cells,
    )


def _cell(campaign: Campaign, row: Requirement, schedule: str) -> Cell:
    try:
        return judge_cell(campaign, row, schedule)
    except (ContractError, HarnessError) as error:
        return Cell(requirement=row.id, schedule=schedule, status="error", reason=str(error))
