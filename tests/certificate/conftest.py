"""The contents of a sound package for level Forward, made by hand: two schedules, every size, every canary."""

import hashlib

import msgspec
import pytest

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.campaign.kept import JudgedCases
from pipeconform.certificate.contents import Canary, Certificate, Contents, MachineEnvironment
from pipeconform.certificate.decision import reasons_against
from pipeconform.report.result import Totals
from pipeconform.spec import STANDARD_VERSION, certification_level, mandatory, rule_digests
from pipeconform.spec.levels import batch_class
from tests.report.conftest import make

__all__ = ["make"]

SCHEDULES = ("GPipe", "1F1B")
SIZES = ((1, 1), (2, 1), (2, 2), (2, 3), (3, 2), (3, 4))  # p, m
SOURCE = b"class MyAdapter: ...\n"


def sound(make, *, schedules=SCHEDULES, shard=""):
    level = certification_level("forward")
    rows = [row.id for row in mandatory(level)]
    cases = {}
    cells, judged = [], []
    for schedule in schedules:
        drawn = [make.changed(make.case(p=p, m=m), schedule=schedule) for p, m in SIZES]
        cases |= {case.digest: msgspec.json.encode(case) for case in drawn}
        classes = [batch_class(num_ranks=p, num_microbatches=m) for p, m in SIZES]
        for row in rows:
            cells.append(
                make.cell(
                    row,
                    schedule,
                    judgements=len(SIZES),
                    compared=10 * len(SIZES),
                    distinct_cases=len(SIZES),
                    counts={f"p={n},v=1": sum(p == n for p, _ in SIZES) for n in (1, 2, 3)},
                    microbatches={one: classes.count(one) for one in classes},
                )
            )
            digests = tuple(case.digest for case in drawn)
            judged.append(JudgedCases(requirement=row, schedule=schedule, variant="default", digests=digests))
    result = make.result(*cells)
    claims = Capabilities(
        schedules=tuple(ScheduleClaim(name=name) for name in SCHEDULES), features=frozenset({Feature.OUTPUTS})
    )
    digest = hashlib.sha256(SOURCE).hexdigest()
    implementation = msgspec.structs.replace(
        result.implementation,
        capabilities=msgspec.json.decode(msgspec.json.encode(claims)),
        source="mine.py",
        source_digest=digest,
    )
    result = msgspec.structs.replace(
        result,
        standard_version=STANDARD_VERSION,
        implementation=implementation,
        rules={name: value for name, value in rule_digests().items() if name in rows},
        run=msgspec.structs.replace(
            result.run, corpus=level.draws, schedules=tuple(schedules), profile="certify"
        ),
        totals=Totals(
            judgements=len(cells) * len(SIZES),
            executions=50,
            distinct_cases=len(cases),
            distinct_cases_several_ranks=4,
        ),
    )
    reasons = (f"shard {shard} decides nothing",) if shard else reasons_against(level, result)
    return Contents(
        certificate=Certificate(
            level="forward",
            standard_version=STANDARD_VERSION,
            product_version=result.product_version,
            created=result.created,
            implementation=implementation.name,
            version=implementation.version,
            reference=implementation.reference,
            source_digest=digest,
            seed=0,
            draws=level.draws,
            shard=shard,
            granted=not reasons,
            reasons=reasons,
        ),
        result=result,
        environment=(
            MachineEnvironment(
                environment=result.environment,
                processor="a processor",
                memory=1 << 30,
                drivers=(),
                torch_build="built somehow",
                packages={"torch": "2.13.0"},
                switches={},
            ),
        ),
        canaries=tuple(
            Canary(
                fault=f"breaks-{row.lower()}",
                requirement=row,
                schedule="1F1B",
                expected="failed",
                detected=True,
                shown=("failed: output value",),
                seconds=0.1,
                shard=shard,
            )
            for row in rows
        ),
        judged=tuple(judged),
        cases=cases,
        others={"adapter/mine.py": SOURCE, "logs/summary.txt": b"all met\n"},
    )


@pytest.fixture
def contents(make):
    return sound(make)


@pytest.fixture
def shard(make):
    """One shard of two, by its number from 1."""
    return lambda number: sound(make, schedules=SCHEDULES[number - 1 :: 2], shard=f"{number}/2")
