"""``pipeconform wrappers``: judge a data-parallel module wrapper by chapter DPW."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

import click

from pipeconform.commands.options import impl_option, names
from pipeconform.errors import BadCaseError, HarnessError, NothingJudgedError, UnknownNameError
from pipeconform.report.location import DEFAULT_OUT
from pipeconform.run.supported import require_supported_torch

__all__ = ["judge_wrapper", "wrappers"]

_RESULT = "wrappers.json"


@click.group(short_help="Judge a data-parallel wrapper (DDP, FSDP, …).")
def wrappers() -> None:
    """Judge a module wrapper that keeps data-parallel replicas in step, by chapter DPW.

    --impl is torch-ddp, torch-fully-shard, torch-fsdp, reference-wrapper, package.module:Object or file.py:Object;
    the contract is pipeconform.wrapper.WrapperAdapter.
    """


@wrappers.command(name="list")
def list_() -> None:
    """List the requirements, and what each needs to be claimed."""
    from pipeconform.spec.wrappers import wrapper_capabilities, wrapper_chapter

    needs = wrapper_capabilities()
    for row in wrapper_chapter().requirements:
        click.echo(f"{row.id:<7}{row.level:<7}{row.title:<40}{', '.join(sorted(needs[row.id]))}".rstrip())


@wrappers.command()
@impl_option()
@click.option("--requirements", metavar="IDS", help="Judge only these: DPW-1,DPW-7.  [default: all]")
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of all values.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=DEFAULT_OUT,
    show_default=True,
    help="Where wrappers.json is written.",
)
def run(*, impl: str, requirements: str | None, seed: int, out: Path) -> int:
    """Judge a wrapper on two and three ranks of the CPU.

    Exit code 0: every claimed requirement is met; 1: violations; 2: a wrong name or adapter; 3: the harness failed.
    """
    return judge_wrapper(impl, requirements=names(requirements), seed=seed, out=out)


def judge_wrapper(impl: str, *, requirements: tuple[str, ...], seed: int, out: Path) -> int:
    """Judge a wrapper, print what was found and return the exit code.

    Raises:
        UsageError: a wrong name or adapter.
        HarnessError: the harness failed, or nothing was judged.
    """
    require_supported_torch()
    import pytest

    from pipeconform.commands.engine import isolated
    from pipeconform.replication.pytest_wrappers import WrapperRun
    from pipeconform.replication.text import result_text

    judged = WrapperRun(impl, requirements=requirements, seed=seed, out=out)
    said = io.StringIO()
    with isolated(), redirect_stdout(said):
        code = pytest.main(_arguments(), plugins=[judged])
    if judged.refused is not None:
        raise judged.refused
    if code == pytest.ExitCode.INTERRUPTED:
        return 130
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise HarnessError(f"pytest ended with code {int(code)}:\n{said.getvalue()}")
    result = judged.result
    if result is None or not any(cell.judgements for cell in result.cells):
        raise NothingJudgedError("nothing was judged: the wrapper claims nothing of --requirements")
    click.echo(result_text(result))
    click.echo(f"results: {out / _RESULT}")
    if any(cell.status == "error" and not cell.violations for cell in result.cells):
        raise HarnessError("some requirements could not be judged; see ERR above for the reason")
    return int(any(cell.violations for cell in result.cells))


def _arguments() -> list[str]:
    from importlib import resources

    suite = resources.files("pipeconform.suites") / "data_parallel_wrappers"
    ini = resources.files("pipeconform.commands") / "run.ini"
    return [str(suite), "-c", str(ini), f"--rootdir={suite}", "--capture=no", "-q"]


@wrappers.command()
@click.argument("stored", metavar="CASE.json|ID")
@impl_option()
@click.option("--requirement", metavar="ID", help="Judge by this requirement; needed for a case file.")
@click.option(
    "--result",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=DEFAULT_OUT / _RESULT,
    show_default=True,
    help="The result file in which ID is looked up.",
)
def replay(*, stored: str, impl: str, requirement: str | None, result: Path) -> int:
    """Execute a stored case in fresh processes and judge it: REPRODUCED (1) or FIXED (0)."""
    require_supported_torch()
    from pipeconform.replication.case import decode_case
    from pipeconform.replication.result import read_wrapper_result
    from pipeconform.replication.setup import campaign_of
    from pipeconform.replication.text import case_text
    from pipeconform.spec.wrappers import wrapper_requirement

    path = Path(stored)
    if path.is_file():
        if requirement is None:
            raise BadCaseError(f"{stored} is a case: say by --requirement what to judge it by")
        case, identifier = decode_case(path.read_bytes(), source=stored), requirement
    else:
        known = {v.id: (c, v) for c in read_wrapper_result(result).cells for v in c.violations}
        if stored not in known:
            raise UnknownNameError(f"violation (in {result})", stored, known)
        cell, violation = known[stored]
        case, identifier = violation.case, requirement or cell.requirement
    with campaign_of(impl) as campaign:
        found = campaign.judge_case(wrapper_requirement(identifier).id, case)
    click.echo(f"{identifier}, case {case_text(case)}")
    for outcome in found:
        click.echo(f"REPRODUCED {outcome.status}: {outcome.finding.kind}\n{outcome.finding.message}")
    if not found:
        click.echo(f"FIXED: {identifier} is met")
    return int(bool(found))
