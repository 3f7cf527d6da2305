"""``pipeconform certify``: run the fixed cases of a level and write one package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeconform.campaign.options import Options
from pipeconform.certificate.parts import parse_shard
from pipeconform.certificate.signature import public_key_of
from pipeconform.certificate.signature import sign as sign_file
from pipeconform.commands.agents import attach_from, attach_options
from pipeconform.commands.options import device_options, impl_option
from pipeconform.commands.say import say
from pipeconform.errors import UsageError
from pipeconform.execute.implementation import resolve
from pipeconform.spec import certification_level, mandatory
from pipeconform.supported import import_torch, require_supported_torch

if TYPE_CHECKING:
    from pipeconform.commands.certifying import Certified

__all__ = ["certify", "certify_implementation"]


@click.command(short_help="Certify an implementation for a level and write a package.")
@impl_option()
@click.option("--level", metavar="NAME", required=True, help="The level; see 'pipeconform list --levels'.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The package to write.  [default: NAME-LEVEL.pipeconform.zip]",
)
@click.option("--shard", metavar="I/N", help="Judge only part I of N; 'pipeconform merge' joins them.")
@click.option("-n", "workers", metavar="WORKERS", help="Judge schedules in parallel in N processes, or auto.")
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
    """Judge an implementation by the requirements of a level and write a package that anyone can verify.

    The level fixes what is run: requirements, seed, sizes, number of cases. The faulty variants of the reference
    implementation are run, too, to prove that this machine detects a wrong implementation; with --attach they run
    on the same agents. A level that the claims alone refuse is refused before anything is run, and without a package.
    Exit code 1: not granted.
    """
    options = Options(
        implementation=impl,
        device=device,
        backend=backend,
        ranks_per_device=ranks_per_device,
        attach=attach_from(**agents),
    )
    done = certify_implementation(options, level, out=out, shard=shard, workers=workers, live=True, log=say)
    if done.package is None:
        return 1
    if sign is not None:
        written = sign_file(done.package, key=sign, comment=f"{done.package.name}, level {level}")
        say(f"signature: {written}; public key: {public_key_of(sign).splitlines()[1]}")
    return int(not done.granted and shard is None)


def certify_implementation(
    options: Options,
    level: str,
    *,
    out: Path | None = None,
    shard: str | None = None,
    workers: str | None = None,
    live: bool = False,
    log: Callable[[str], object] = lambda text: None,
) -> Certified:
    """Certify the implementation of `options` for `level`; the level fixes what is drawn.

    `out` is the package to write, by default named after the implementation and the level; `shard` such as
    ``"1/3"`` judges a part; `workers` is a number of processes or ``"auto"``; `log` is called with lines of text.

    Raises:
        UsageError: an unknown name, a level that is not available, a wrong implementation, too few devices,
            agents together with `workers`.
        TooFewAgentsError: not enough agents came.
        BadPackageError: the package cannot be written; the run's files are kept and named.
        HarnessError: the harness failed, or some cells could not be judged.
    """
    require_supported_torch()
    if options.attach is not None and workers not in (None, "0"):
        raise UsageError("--attach and -n do not go together: one controller drives all agents")
    wanted = certification_level(level)
    mandatory(wanted)  # refuses a level that is not available
    resolve(options.implementation)
    if shard is not None:
        parse_shard(shard)
    import_torch()
    from pipeconform.commands.certifying import certified  # noqa: PLC0415 - imports torch

    return certified(options, wanted, out=out, shard=shard, workers=workers, live=live, log=log)
