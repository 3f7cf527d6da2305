"""Certifying an implementation: the level's run, the canaries, and the package made from both."""

from __future__ import annotations

import datetime
import functools
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeconform.attach.session import attached_devices, kept_controller
from pipeconform.campaign.kept import read_judged
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of, say
from pipeconform.campaign.target import Target
from pipeconform.certificate.beforehand import reasons_in_claims
from pipeconform.certificate.bounds import require_bounded
from pipeconform.certificate.canaries import faults_of
from pipeconform.certificate.checks import check_contents
from pipeconform.certificate.contents import (
    Canary,
    Certificate,
    Contents,
    adapter_name,
    claims_of_result,
    digest_of,
)
from pipeconform.certificate.decision import reasons_against, weakening
from pipeconform.certificate.drawing import PROFILE, SEED, num_draws
from pipeconform.certificate.engine import engine_in, engine_text
from pipeconform.certificate.machine import machine_environment
from pipeconform.certificate.package import SUFFIX, write_package
from pipeconform.certificate.packing import packed
from pipeconform.certificate.parts import parse_shard, part_of
from pipeconform.commands.canaries import watched_canaries
from pipeconform.commands.claimed_for import refusal_text
from pipeconform.commands.engine import arguments, drive, unjudged
from pipeconform.commands.folders import claimed, emptied
from pipeconform.errors import BadPackageError, HarnessError, NothingJudgedError, UsageError
from pipeconform.execute.engine import Component
from pipeconform.execute.source import Source
from pipeconform.report.cause_text import cause_list
from pipeconform.report.causes import causes_of
from pipeconform.report.console import SafeConsole
from pipeconform.report.junit import junit
from pipeconform.report.location import DEFAULT_OUT, RESULT_NAME
from pipeconform.report.result import Result, read_result
from pipeconform.report.summary import render_summary
from pipeconform.report.words import returned_unclaimed
from pipeconform.spec import CertificationLevel, certification_level, mandatory

__all__ = ["Certified", "certified", "decision_text", "interruption"]

_LOG_WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class Certified:
    """The outcome of a certification."""

    package: Path | None
    """None if the claims alone refuse the level: then nothing is run."""
    granted: bool
    reasons: tuple[str, ...]
    """Why the level was not granted."""


def certified(
    options: Options,
    level: CertificationLevel,
    *,
    out: Path | None,
    shard: str | None,
    workers: str | None,
    live: bool,
    log: Callable[[str], object],
) -> Certified:
    """Certify the implementation of `options`; the other arguments are those of `certify_implementation`."""
    impl, attach = options.implementation, options.attach
    ids = tuple(row.id for row in mandatory(level))
    judged, source, engine = _described(impl)
    if judged.kind != level.kind:
        raise UsageError(f"level {level.title} is granted to a {level.kind}, and {impl} is a {judged.kind}")
    require_bounded(judged.claims)
    target = out or Path(_name(judged.name, level.name, shard))
    _check_writable(target)
    if refused := reasons_in_claims(level, judged):
        log(refusal_text(level, judged, refused, implementation=impl))
        return Certified(package=None, granted=False, reasons=refused)
    if not source.name:
        raise UsageError(
            f"--impl {impl}: Python does not know the file that defines it, and a certificate contains that file; "
            f"put the adapter into a .py file"
        )
    work = DEFAULT_OUT / ".".join(["certify", level.name, *([shard.replace("/", "-of-")] if shard else [])])
    on_these = replace(options, ranks=(1, level.max_ranks))
    requirements: tuple[str, ...] = ids
    schedules: tuple[str, ...] = ()
    if shard is not None:
        number, total = parse_shard(shard)
        requirements, schedules = part_of(judged, ids, number=number, total=total)
    listed = replace(
        on_these,
        profile=PROFILE,
        requirements=requirements,
        schedules=schedules,
        seed=SEED,
        examples=num_draws(level, judged.claims),
        keep_cases=work / "kept",
    )
    telling = functools.partial(_telling_if_interrupted, work, shard=shard or "", workers=workers, log=log)
    with ExitStack() as stack:
        stack.enter_context(claimed(work, remedy="wait for its end, or certify in another directory"))
        with telling():
            if attach is not None:
                there = attached_devices(
                    options.device, backend=options.backend, ranks_per_device=options.ranks_per_device
                )
                # one connection for run and canaries: agents that were released do not return
                stack.enter_context(kept_controller(attach, devices=there, largest=level.max_ranks, say=say))
            result = _judge(listed, work=work, workers=workers, live=live)
        log("running the canaries: implementations that are wrong on purpose")
        with telling(all_judged=True):
            canaries = watched_canaries(
                faults_of(ids),
                options=on_these,
                console=SafeConsole(quiet=not live),
                shard=shard or "",
                run_id=result.run.ids[0],
            )
    caught = sum(canary.detected for canary in canaries)
    log(f"{caught} of {len(canaries)} faults detected")
    contents = _contents(result, level, canaries, work=work, source=source, engine=engine, shard=shard or "")
    return _written(contents, target, work=work, log=log)


@contextmanager
def _telling_if_interrupted(
    work: Path,
    *,
    shard: str,
    workers: str | None,
    log: Callable[[str], object],
    all_judged: bool = False,
) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        log(interruption(work, shard=shard, workers=workers, all_judged=all_judged))
        raise


def interruption(work: Path, *, shard: str = "", workers: str | None = None, all_judged: bool = False) -> str:
    """What an interrupted certification leaves in its folder, and how to go on.

    `all_judged`: it was interrupted among the canaries, after the requirements.
    """
    file = work / RESULT_NAME
    if all_judged:
        kept = f"all requirements were judged, which is kept in {file}, but not all canaries were tried"
    else:
        kept = f"what was judged is kept in {file}" if file.exists() else "nothing was judged yet"
    lines = [f"no package: {kept}; certify starts over, and begins with the requirements"]
    ways = [
        *([] if workers not in (None, "0") else ["-n auto judges schedules in parallel"]),
        *(
            []
            if shard
            else ["--shard 1/4 certifies a quarter, whose package is kept, and 'merge' joins them"]
        ),
    ]
    return "\n".join([*lines, *(["; ".join(ways)] if ways else [])])


def _described(impl: str) -> tuple[Target, Source, tuple[Component, ...]]:
    """The implementation's description, its source file, and the engine's files behind it."""
    with campaign_of(Options(implementation=impl)) as campaign:
        return campaign.target, campaign.source, engine_in(campaign)


def _name(implementation: str, level: str, shard: str | None) -> str:
    """The default file name of a package."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", implementation).strip("-.") or "implementation"
    part = f"-{shard.replace('/', '-of-')}" if shard else ""
    return f"{plain}-{level}{part}{SUFFIX}"


def _check_writable(path: Path) -> None:
    """Refuse, before anything runs, a path to which the package could not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise BadPackageError(
            f"cannot write {path}: {error.strerror or error}; choose another --out"
        ) from error


def _judge(options: Options, *, work: Path, workers: str | None, live: bool) -> Result:
    emptied(work)  # cases of an earlier run do not belong to this one
    ended = drive(arguments(options, out=work, workers=workers, live=live))
    ended.require()
    result = read_result(work)
    if broken := unjudged(result.cells):
        raise HarnessError(broken)
    if not any(cell.is_judged for cell in result.cells):
        raise NothingJudgedError("nothing was judged: the implementation claims nothing that the level needs")
    return result


def _contents(
    result: Result,
    level: CertificationLevel,
    canaries: tuple[Canary, ...],
    *,
    work: Path,
    source: Any,
    engine: Any,
    shard: str,
) -> Contents:
    machine = machine_environment(result.environment, run_id=result.run.ids[0], engine=engine)
    judged, cases = read_judged(work / "kept")
    one = result.implementation
    reasons = (
        (f"shard {shard} decides nothing; merge all of them",) if shard else reasons_against(level, result)
    )
    others = {"logs/summary.txt": _summary(result), "logs/junit.xml": junit(result, causes_of(result))}
    if source.name:
        others[adapter_name(source.name)] = source.text
    return Contents(
        certificate=Certificate(
            level=level.name,
            standard_version=result.standard_version,
            product_version=result.product_version,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            implementation=one.name,
            version=one.version,
            reference=one.reference,
            source_digest=one.source_digest,
            built_on=one.built_on,
            seed=result.run.seed,
            draws=result.run.corpus,
            shard=shard,
            granted=not reasons,
            reasons=reasons,
            weakening=weakening(result),
            engine=engine,
            claims_digest=digest_of(claims_of_result(result)),
            run_ids=result.run.ids,
            environment_digests=(digest_of(machine),),
        ),
        result=result,
        environment=(machine,),
        canaries=canaries,
        judged=judged,
        cases=cases,
        others=others,
    )


def _summary(result: Result) -> bytes:
    console = SafeConsole(file=io.StringIO(), width=_LOG_WIDTH, color_system=None)
    render_summary(result, console, where=None)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.encode()


def _written(contents: Contents, target: Path, *, work: Path, log: Callable[[str], object]) -> Certified:
    try:
        write_package(packed(contents), target)
    except BadPackageError as error:
        raise BadPackageError(f"{error}; the run is kept in {work}") from error
    checked = check_contents(contents)
    for doubt in checked.doubts:
        log(f"doubt: {doubt}")
    for claim in contents.certificate.weakening:
        log(f"claim that weakens the judgement: {claim}")
    log(f"engine: {engine_text(contents.certificate.engine)}")
    log(decision_text(contents, granted=checked.granted, reasons=checked.reasons))
    log(f"package: {target} ('pipeconform report {target}' writes its page and its badge)")
    sys.stdout.flush()
    return Certified(
        package=target,
        granted=checked.granted,
        reasons=(*checked.reasons, *(str(doubt) for doubt in checked.doubts)),
    )


def decision_text(contents: Contents, *, granted: bool, reasons: tuple[str, ...]) -> str:
    """Whether the level is granted; if not, why, and the causes of the violations, the most harmful first."""
    certificate = contents.certificate
    title = certification_level(certificate.level).title
    name = certificate.quoted
    if granted:
        said = f"GRANTED: {name} is certified for level {title}, standard {certificate.standard_version}"
        return "\n".join([said, *(f"  it {line}" for line in returned_unclaimed(contents.result.cells))])
    if certificate.shard:
        return f"shard {certificate.shard} of level {title} for {name} is done; 'pipeconform merge' decides"
    lines = [
        f"NOT GRANTED: {name} is not certified for level {title}",
        *(f"  {reason}" for reason in reasons),
        *_causes(contents.result),
    ]
    return "\n".join(lines)


def _causes(result: Result) -> list[str]:
    """What is behind the violations, the most harmful first; empty if there are none."""
    found = causes_of(result)
    return [line.plain for line in cause_list(found, width=_LOG_WIDTH)] if found else []
