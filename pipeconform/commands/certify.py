"""``pipeconform certify``: run the fixed, seeded list of a level and write one package."""

from __future__ import annotations

import datetime
import io
import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeconform.commands.canaries import watched_canaries
from pipeconform.commands.options import attach_from, attach_options, device_options, impl_option
from pipeconform.commands.say import say
from pipeconform.errors import BadPackageError, HarnessError, NothingJudgedError, UsageError
from pipeconform.report.location import DEFAULT_OUT, RESULT_NAME
from pipeconform.supported import require_supported_torch

if TYPE_CHECKING:
    from pipeconform.attach.session import Attach
    from pipeconform.certificate.contents import Canary, Contents
    from pipeconform.commands.engine import Ended
    from pipeconform.report.result import Result
    from pipeconform.spec import CertificationLevel
    from pipeconform.spec.wrappers import Kind

__all__ = ["Certified", "certify", "certify_implementation"]

_LOG_WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class Certified:
    """What a certification came to."""

    package: Path
    granted: bool
    reasons: tuple[str, ...]
    """Why the level was not granted."""


@click.command(short_help="Certify an implementation for a level; writes a package.")
@impl_option()
@click.option("--level", metavar="NAME", required=True, help="The level; 'pipeconform list --levels'.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The package.  [default: NAME-LEVEL.pipeconform.zip]",
)
@click.option("--shard", metavar="I/N", help="Judge only this part; 'pipeconform merge' puts all together.")
@click.option("-n", "workers", metavar="WORKERS", help="Judge schedules in several processes.")
@click.option(
    "--sign",
    metavar="KEY.pem",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Sign the package with this Ed25519 key; writes FILE.minisig.",
)
@device_options
@attach_options
def certify(
    *,
    impl: str,
    level: str,
    out: Path | None,
    shard: str | None,
    workers: str | None,
    sign: Path | None,
    device: str,
    backend: str,
    ranks_per_device: int,
    **agents: Any,
) -> int:
    """Run the mandatory list of a level on an implementation and write one package that anybody can verify.

    What is run is fixed by the level: requirements, seed, sizes, number of cases. The faults of the reference
    are run, too, to prove that this machine can see a wrong implementation; with --attach they run on the same
    agents. Exit code 1: not granted.
    """
    done = certify_implementation(
        impl,
        level,
        out=out,
        shard=shard,
        workers=workers,
        device=device,
        backend=backend,
        ranks_per_device=ranks_per_device,
        attach=attach_from(agents),
        live=True,
        log=say,
    )
    if sign is not None:
        from pipeconform.certificate.signature import public_key_of
        from pipeconform.certificate.signature import sign as sign_file

        written = sign_file(done.package, key=sign, comment=f"{done.package.name}, level {level}")
        say(f"signature: {written}; public key: {public_key_of(sign).splitlines()[1]}")
    return int(not done.granted and shard is None)


def certify_implementation(
    impl: str,
    level: str,
    *,
    out: Path | None = None,
    shard: str | None = None,
    workers: str | None = None,
    device: str = "cpu",
    backend: str = "auto",
    ranks_per_device: int = 1,
    attach: Attach | None = None,
    live: bool = False,
    log: Any = lambda text: None,
) -> Certified:
    """Certify `impl`, a reference as ``--impl`` takes it, for `level`.

    `out` is the package to write, by default named after the implementation and the level; `shard` such as
    ``"1/3"`` judges a part; `workers` is a number of processes or ``"auto"``; `attach` says where agents connect
    that have the ranks; `log` is called with lines of text.

    Raises:
        UsageError: an unknown name, a level that is not available, a wrong implementation, too few devices,
            `attach` together with `workers`.
        TooFewAgentsError: not enough agents came.
        BadPackageError: the package cannot be written; the run's files are kept and named.
        HarnessError: the harness failed, or some cells could not be judged.
    """
    require_supported_torch()
    from pipeconform.attach.session import attached_devices, kept_controller
    from pipeconform.campaign.options import Options
    from pipeconform.campaign.setup import say
    from pipeconform.certificate.bounds import require_bounded
    from pipeconform.certificate.canaries import faults_of
    from pipeconform.certificate.drawing import num_draws
    from pipeconform.certificate.parts import parse_shard
    from pipeconform.execute.implementation import resolve
    from pipeconform.report.console import SafeConsole
    from pipeconform.spec import certification_level, mandatory

    if attach is not None and workers not in (None, "0"):
        raise UsageError("--attach and -n do not go together: one controller drives all agents")
    wanted = certification_level(level)
    ids = [row.id for row in mandatory(wanted)]
    resolve(impl)
    part = None if shard is None else parse_shard(shard)
    description, source, kind, engine = _described(impl)
    if kind != wanted.kind:
        raise UsageError(f"level {wanted.title} is granted to a {wanted.kind}, and {impl} is a {kind}")
    if part is not None and kind == "wrapper":
        raise UsageError("--shard divides schedules, and a wrapper has none; leave it out")
    require_bounded(description.claims if kind == "wrapper" else description.capabilities)
    if not source.name:
        raise UsageError(
            f"--impl {impl}: Python cannot tell the file that defines it, and a certificate names its contents; "
            f"put the adapter into a .py file"
        )
    target = out or Path(_name(description.name, wanted.name, shard))
    _check_writable(target)
    schedules = None if part is None else _part(description, part)
    work = DEFAULT_OUT / ".".join(["certify", wanted.name, *([shard.replace("/", "-of-")] if shard else [])])
    devices: dict[str, Any] = {"device": device, "backend": backend, "ranks_per_device": ranks_per_device}
    draws = None if kind == "wrapper" else num_draws(wanted, description.capabilities)
    with ExitStack() as stack:
        if attach is not None:
            there = attached_devices(device, backend=backend, ranks_per_device=ranks_per_device)
            # for the run and the canaries: agents that are sent home do not come back
            stack.enter_context(kept_controller(attach, devices=there, largest=wanted.max_ranks, say=say))
        result = _judge(
            impl,
            wanted,
            ids,
            draws,
            schedules,
            work=work,
            workers=workers,
            live=live,
            where={**devices, **_given(attach)},
        )
        log("running the canaries: implementations that are wrong on purpose")
        canaries = watched_canaries(
            faults_of(ids),
            options=Options(implementation=impl, ranks=(1, wanted.max_ranks), attach=attach, **devices),
            console=SafeConsole(quiet=not live),
            shard=shard or "",
            run_id=result.run.ids[0],
        )
    caught = sum(canary.detected for canary in canaries)
    log(f"{caught} of {len(canaries)} faults detected")
    contents = _contents(result, wanted, canaries, work=work, source=source, engine=engine, shard=shard or "")
    return _written(contents, target, work=work, log=log)


def _given(attach: Attach | None) -> dict[str, Any]:
    """The options that say the same."""
    if attach is None:
        return {}
    host = f"[{attach.host}]" if ":" in attach.host else attach.host
    return {
        "attach": f"{host}:{attach.port}",
        "min_agents": attach.least,
        "agent_wait": attach.patience,
        "token_file": None if attach.token_file is None else str(attach.token_file),
    }


def _described(impl: str) -> tuple[Any, Any, Kind, Any]:
    """What it says of itself, its source file, what it is and which files are behind it."""
    from pipeconform.campaign.options import Options
    from pipeconform.certificate.engine import engine_in
    from pipeconform.replication.either import any_campaign_of, description_in, kind_of

    with any_campaign_of(Options(implementation=impl)) as campaign:
        return description_in(campaign), campaign.source, kind_of(campaign), engine_in(campaign)


def _part(description: Any, part: tuple[int, int]) -> str:
    from pipeconform.certificate.parts import schedules_of_shard

    claimed = [claim.name for claim in description.capabilities.schedules]
    return ",".join(schedules_of_shard(claimed, number=part[0], total=part[1]))


def _name(implementation: str, level: str, shard: str | None) -> str:
    """A file name from what an adapter calls itself."""
    from pipeconform.certificate.package import SUFFIX

    plain = re.sub(r"[^A-Za-z0-9.]+", "-", implementation).strip("-.") or "implementation"
    part = f"-{shard.replace('/', '-of-')}" if shard else ""
    return f"{plain}-{level}{part}{SUFFIX}"


def _check_writable(path: Path) -> None:
    """Refuse before anything runs what could not be kept afterwards."""
    import tempfile

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise BadPackageError(
            f"cannot write {path}: {error.strerror or error}; choose another --out"
        ) from error


def _judge(
    impl: str,
    level: CertificationLevel,
    ids: list[str],
    draws: int | None,
    schedules: str | None,
    *,
    work: Path,
    workers: str | None,
    live: bool,
    where: dict[str, Any],
) -> Result:
    import shutil

    from pipeconform.certificate.drawing import PROFILE, SEED
    from pipeconform.commands.engine import arguments, drive
    from pipeconform.report.result import read_result

    shutil.rmtree(work, ignore_errors=True)  # cases of an earlier run would not be this one's
    options = {
        "impl": impl,
        "profile": PROFILE,
        "requirements": ",".join(ids),
        "schedules": schedules,
        "ranks": f"1-{level.max_ranks}",
        "seed": SEED,
        "examples": draws,
        "keep-cases": str(work / "kept"),
        **{name.replace("_", "-"): value for name, value in where.items()},
    }
    ended = drive(arguments(options=options, out=work, workers=workers, live=live))
    _require_end(ended)
    result = read_result(work / RESULT_NAME)
    if ended.interrupted:
        raise click.Abort
    if any(cell.status == "error" and not cell.violations for cell in result.cells):
        broken = next(cell for cell in result.cells if cell.status == "error" and not cell.violations)
        raise HarnessError(
            f"{broken.requirement} under {broken.schedule} could not be judged: {broken.reason.splitlines()[0]}"
        )
    if not any(cell.is_judged for cell in result.cells):
        raise NothingJudgedError("nothing was judged: the implementation claims nothing that the level needs")
    return result


def _require_end(ended: Ended) -> None:
    if ended.gave_up:
        raise HarnessError(ended.gave_up)
    if ended.usage:
        raise UsageError("\n".join(ended.usage))
    if ended.failures:
        raise HarnessError(f"the suites failed: {ended.failures[0]}")


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
    from pipeconform.campaign.kept import read_judged
    from pipeconform.certificate.contents import (
        Certificate,
        Contents,
        adapter_name,
        claims_of_result,
        digest_of,
    )
    from pipeconform.certificate.decision import reasons_against
    from pipeconform.certificate.machine import machine_environment
    from pipeconform.certificate.weakening import weakening

    machine = machine_environment(result.environment, run_id=result.run.ids[0], engine=engine)
    judged, cases = read_judged(work / "kept")
    one = result.implementation
    reasons = (
        (f"shard {shard} decides nothing; merge all of them",) if shard else reasons_against(level, result)
    )
    others = {"logs/summary.txt": _summary(result), "logs/junit.xml": (work / "junit.xml").read_bytes()}
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
    from pipeconform.report.console import SafeConsole
    from pipeconform.report.summary import render_summary

    console = SafeConsole(file=io.StringIO(), width=_LOG_WIDTH, color_system=None)
    render_summary(result, console, where=None)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.encode()


def _written(contents: Contents, target: Path, *, work: Path, log: Any) -> Certified:
    from pipeconform.certificate.checks import check_contents
    from pipeconform.certificate.contents import packed
    from pipeconform.certificate.engine import engine_text
    from pipeconform.certificate.package import write_package

    try:
        write_package(packed(contents), target)
    except BadPackageError as error:
        raise BadPackageError(f"{error}; the run is kept in {work}") from error
    checked = check_contents(contents)
    for doubt in checked.doubts:
        log(f"doubt: {doubt}")
    for claim in contents.certificate.weakening:
        log(f"claimed, with which less is seen: {claim}")
    log(f"engine: {engine_text(contents.certificate.engine)}")
    log(_decision(contents, granted=checked.granted, reasons=checked.reasons))
    log(f"package: {target}")
    sys.stdout.flush()
    return Certified(
        package=target,
        granted=checked.granted,
        reasons=(*checked.reasons, *(str(doubt) for doubt in checked.doubts)),
    )


def _decision(contents: Contents, *, granted: bool, reasons: tuple[str, ...]) -> str:
    from pipeconform.report.words import returned_unclaimed
    from pipeconform.spec import certification_level

    certificate = contents.certificate
    title = certification_level(certificate.level).title
    name = f"{certificate.implementation} {certificate.version}"
    if granted:
        said = f"GRANTED: {name} is certified for level {title}, standard {certificate.standard_version}"
        return "\n".join([said, *(f"  it {line}" for line in returned_unclaimed(contents.result.cells))])
    if certificate.shard:
        return f"shard {certificate.shard} of level {title} for {name} is done; 'pipeconform merge' decides"
    lines = [
        f"NOT GRANTED: {name} is not certified for level {title}",
        *(f"  {reason}" for reason in reasons),
    ]
    return "\n".join(lines)
