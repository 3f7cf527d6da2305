"""The contents of a sound package for level Forward: the reference's claims under two schedules, all of their cases."""

import dataclasses
import functools
import hashlib
from importlib import metadata

import msgspec
import pytest

from pipeconform.campaign.kept import JudgedCases
from pipeconform.campaign.pairs import pairwise
from pipeconform.campaign.status import identifier_of
from pipeconform.campaign.together import meetings
from pipeconform.certificate.canaries import faults_of
from pipeconform.certificate.contents import (
    Canary,
    Certificate,
    Contents,
    MachineEnvironment,
    claims_of_result,
    digest_of,
)
from pipeconform.certificate.decision import reasons_against
from pipeconform.certificate.listed import listed
from pipeconform.certificate.machine import PACKAGES
from pipeconform.execute.engine import Component
from pipeconform.execute.implementation import describe
from pipeconform.report.result import Cell, Implementation, Totals
from pipeconform.spec import STANDARD_VERSION, certification_level, mandatory, rule_digest
from tests.report.conftest import make

__all__ = ["make"]

SCHEDULES = ("GPipe", "1F1B")
SOURCE = b"class MyAdapter: ...\n"
LEVEL = certification_level("forward")


@functools.cache
def implementation(name="toy GPipe", version="1.0"):
    """What claims all that the reference does, under two schedules."""
    found = describe("reference")
    claims = dataclasses.replace(
        found.capabilities,
        schedules=tuple(one for one in found.capabilities.schedules if one.name in SCHEDULES),
    )
    return Implementation(
        reference="mine.py:MyAdapter",
        name=name,
        version=version,
        capabilities=as_read(claims),
        source="mine.py",
        source_digest=hashlib.sha256(SOURCE).hexdigest(),
        errors=as_read(found.errors),
    )


def as_read(claims):
    return msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(claims, order="deterministic")))


@functools.cache
def wrapper():
    """What claims all that the reference's wrapper does."""
    found = describe("reference-wrapper")
    return msgspec.structs.replace(
        implementation(), kind="wrapper", capabilities=as_read(found.claims), errors=None
    )


def sound(make, *, schedules=SCHEDULES, shard="", run="", level=LEVEL, judged=None):
    """`run` is a digit that the id of its run is made of, that of the shard unless it is given."""
    run, judged = run or shard[:1] or "a", judged or implementation()
    rows = [row.id for row in mandatory(level)]
    expected = listed(level, judged, max_ranks=level.max_ranks)
    if shard:
        expected = expected.shard(*map(int, shard.split("/")))
    elif expected.target.shares_executions:
        expected = expected.under(schedules)
    return _sound(make, level, judged, expected, rows=rows, shard=shard, run=run)


def _sound(make, level, judged, expected, *, rows, shard, run):
    cells = [
        Cell(requirement=one.requirement, schedule=one.schedule, status=one.status, reason=one.reason)
        if one.status
        else make.cell(
            one.requirement,
            one.schedule,
            judgements=len(one.cases),
            compared=len(one.cases),
            without=one.without,
            executions=len(one.digests),
            distinct_cases=len(one.digests),
            counts=one.counts,
            microbatches=one.microbatches,
            worst_ratio=0.5 if one.requirement == "FWD-1" else None,
        )
        for one in expected.cells
    ]
    result = make.result(*cells)
    points = {point for case in expected.cases.values() for point in expected.target.points(case)}
    columns = tuple(dict.fromkeys(one.schedule for one in expected.cells))
    judged_rows = list(dict.fromkeys(one.requirement for one in expected.cells))
    result = msgspec.structs.replace(
        result,
        standard_version=STANDARD_VERSION,
        implementation=judged,
        environment=msgspec.structs.replace(
            result.environment, variables={"default": {"OMP_NUM_THREADS": "1"}}
        ),
        rules={row.id: rule_digest(row) for row in mandatory(level) if row.id in judged_rows},
        run=msgspec.structs.replace(
            result.run,
            corpus=expected.draws,
            schedules=columns,
            max_ranks=level.max_ranks,
            profile="certify",
            selection=",".join(judged_rows),
            unrestricted=not (shard and expected.target.shares_executions),
            ids=(run * 32,),
        ),
        totals=Totals(
            judgements=sum(cell.judgements for cell in cells),
            executions=sum(cell.executions for cell in cells),
            distinct_cases=len(expected.cases),
            distinct_cases_several_ranks=sum(case.num_ranks > 1 for case in expected.cases.values()),
            pairs=pairwise(points, expected.target.reachable(columns)),
            together=meetings(points, expected.target.reachable(columns)),
        ),
    )
    reasons = (
        (f"shard {shard} decides nothing; merge all of them",) if shard else reasons_against(level, result)
    )
    engine = (
        Component(name="mine", kind="tree", files=3, digest="1" * 64),
        Component(
            name="torch", version=result.environment.torch, kind="distribution", files=9, digest="2" * 64
        ),
    )
    machine = MachineEnvironment(
        environment=result.environment,
        processor="a processor",
        memory=1 << 30,
        drivers=("a driver",),
        torch_build="built somehow",
        packages={name: metadata.version(name) for name in PACKAGES} | {"torch": result.environment.torch},
        switches={"OMP_NUM_THREADS": "1"},
        run_id=run * 32,
        engine=engine,
    )
    one = result.implementation
    return Contents(
        certificate=Certificate(
            level=level.name,
            standard_version=STANDARD_VERSION,
            product_version=result.product_version,
            created=result.created,
            implementation=one.name,
            version=one.version,
            reference=one.reference,
            source_digest=one.source_digest,
            seed=0,
            draws=expected.draws,
            shard=shard,
            granted=not reasons,
            reasons=reasons,
            engine=engine,
            claims_digest=digest_of(claims_of_result(result)),
            run_ids=(run * 32,),
            environment_digests=(digest_of(machine),),
        ),
        result=result,
        environment=(machine,),
        canaries=tuple(
            Canary(
                fault=fault.name,
                requirement=fault.requirement,
                schedule=fault.schedule,
                expected=fault.expected_status,
                detected=True,
                shown=(f"{fault.expected_status}: output value",),
                seconds=0.1,
                shard=shard,
                run_id=run * 32,
            )
            for fault in faults_of(rows)
        ),
        judged=tuple(
            JudgedCases(
                requirement=one.requirement, schedule=one.schedule, variant=one.variant, digests=one.digests
            )
            for one in expected.cells
            if one.status is None
        ),
        cases={digest: msgspec.json.encode(case) for digest, case in expected.cases.items()},
        others={"adapter/mine.py": SOURCE, "logs/summary.txt": b"all met\n", "logs/junit.xml": b"<x/>\n"},
    )


def violated(make, contents, **others):
    """The package with an honest violation of its first cell, and the decision that follows from it."""
    first, *cells = contents.result.cells
    identifier = identifier_of(f"{first.requirement}:{first.schedule}:default", "failed/output value")
    replay = f"pipeconform replay {identifier} --impl mine.py:MyAdapter"
    violation = make.violation(first.requirement, first.schedule, id=identifier, replay=replay, **others)
    failed = msgspec.structs.replace(
        first, status="failed", violations=(violation,), executions=first.executions + 5
    )
    totals = contents.result.totals
    totals = msgspec.structs.replace(totals, executions=totals.executions + 5)
    result = msgspec.structs.replace(contents.result, cells=(failed, *cells), totals=totals)
    certificate = msgspec.structs.replace(
        contents.certificate, granted=False, reasons=reasons_against(LEVEL, result)
    )
    return msgspec.structs.replace(contents, result=result, certificate=certificate)


@pytest.fixture
def contents(make):
    return sound(make)


def half(make, number):
    """One shard of two, by its number from 1."""
    return sound(make, schedules=SCHEDULES[number - 1 :: 2], shard=f"{number}/2")


@pytest.fixture
def shard(make):
    """`half` by its number."""
    return lambda number: half(make, number)
