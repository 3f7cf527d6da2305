"""The commands as functions: judge, compare, expect, certify, verify, merge.

Every function returns plain immutable data and raises the errors of `pipeconform.errors`. They can be imported from
``pipeconform``; torch is imported when one is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from pipeconform.campaign.options import Options
from pipeconform.commands.certify import certify_implementation
from pipeconform.commands.engine import arguments, drive
from pipeconform.commands.folders import claimed
from pipeconform.commands.options import Where
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Result, read_result
from pipeconform.spec.selection import parse_ranks

if TYPE_CHECKING:
    from pipeconform.certificate.checks import Checked
    from pipeconform.commands.certifying import Certified

__all__ = ["certify", "judge_implementation", "merge", "verify"]


def judge_implementation(
    impl: str,
    *,
    profile: str = "core",
    requirements: Sequence[str] = (),
    schedules: Sequence[str] = (),
    ranks: str = "1-4",
    seed: int = 0,
    examples: int | None = None,
    expectations: Path | None = None,
    out: Path,
    workers: str | None = None,
    **where: Unpack[Where],
) -> Result:
    """Judge the implementation called `impl` as ``pipeconform run`` does, in this process, without output.

    `requirements` are ids or chapters, `ranks` is ``"N"`` or ``"A-B"``, `examples` the cases per subject and
    schedule; ``result.json`` and ``junit.xml`` are written to `out`. `where` may hold `device`, `backend` and
    `ranks_per_device`, here and below.

    Raises:
        UsageError: a name, the adapter or the expectations file is wrong.
        BadResultError: `out` cannot be written to, or another run is using it.
        HarnessError: the harness failed; cells that could not be judged have the status ``error``.
        KeyboardInterrupt: the run was interrupted; ``result.json`` has what was judged.
    """
    options = Options(
        implementation=impl,
        profile=profile,
        requirements=tuple(requirements),
        schedules=tuple(schedules),
        ranks=parse_ranks(ranks),
        seed=seed,
        examples=examples,
        **where,
    )
    path = out / RESULT_NAME
    with claimed(out, remedy="choose another `out`"):
        path.unlink(missing_ok=True)  # an older run's result could be mistaken for this one's
        ended = drive(arguments(options, out=out, expectations=expectations, workers=workers, live=False))
        ended.require()
        result = read_result(path)
        from pipeconform.commands.for_ci import write_junit  # noqa: PLC0415 - loads all that reports are made of

        write_junit(result, out, expectations=expectations)
    return result


def certify(
    impl: str,
    level: str,
    *,
    out: Path | None = None,
    shard: str | None = None,
    workers: str | None = None,
    **where: Unpack[Where],
) -> Certified:
    """Certify `impl` for `level` and write a package, as ``pipeconform certify`` does.

    If the claims alone refuse the level, nothing is run, and there is no package.

    Raises:
        UsageError: an unknown name, a level that is not available, a wrong implementation, too few devices.
        BadPackageError: the package cannot be written.
        HarnessError: the harness failed, or some cells could not be judged.
    """
    options = Options(implementation=impl, **where)
    return certify_implementation(options, level, out=out, shard=shard, workers=workers)


def verify(
    package: Path,
    *,
    rerun: int = 0,
    impl: str | None = None,
    sample_seed: int | None = None,
    public_key: Path | None = None,
    **where: Unpack[Where],
) -> Checked:
    """Check a package, as ``pipeconform verify`` does; `rerun` judgements are executed again on `impl`.

    Raises:
        BadPackageError: the package cannot be read.
        UsageError: `rerun` without `impl` or the other way round, or the implementation cannot be used.
        HarnessError: the harness failed.
    """
    from pipeconform.certificate.verification import verify_package  # noqa: PLC0415 - imports torch

    options = None if impl is None else Options(implementation=impl, **where)
    return verify_package(
        package, rerun=rerun, options=options, sample_seed=sample_seed, public_key=public_key
    ).checked


def merge(shards: Sequence[Path], out: Path, *, allow_different_environments: bool = False) -> Checked:
    """Merge the shards of one certification into the package `out`, and check it.

    Raises:
        BadPackageError: a shard is in doubt, missing or given twice, or they do not belong together.
    """
    from pipeconform.certificate.shards import merge_into  # noqa: PLC0415 - imports torch

    return merge_into(out, shards, allow_different_environments=allow_different_environments)
