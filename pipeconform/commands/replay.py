"""``pipeconform replay``: execute a stored case once more and say whether it still fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeconform.commands.asked import asked_of
from pipeconform.commands.exporting import export
from pipeconform.commands.options import attach_from, attach_options, device_options, impl_option
from pipeconform.commands.say import say
from pipeconform.errors import BadCaseError, UnknownNameError, UsageError
from pipeconform.report.location import DEFAULT_RESULT, RESULT_NAME
from pipeconform.supported import require_supported_torch

if TYPE_CHECKING:
    from pipeconform.campaign.setup import Described
    from pipeconform.case.any_case import AnyCase
    from pipeconform.replication.again import Outcomes, Sought
    from pipeconform.report.result import Violation
    from pipeconform.spec import Requirement

__all__ = ["Stored", "heading", "read_stored", "replay", "verdict"]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What is to be executed again, and what it showed, if that is known."""

    name: str
    case: AnyCase
    requirement: str | None = None
    variant: str = "default"
    violation: Violation | None = None

    @property
    def words(self) -> str:
        """What it showed: requirement, status and signature in a line, and the message."""
        if self.violation is None:
            return "a case of no known violation"
        return f"{self.requirement} {self.violation.status}: {self.violation.signature}\n{self.violation.message}"

    @property
    def sought(self) -> Sought | None:
        """The violation that it showed; None where that is not known."""
        from pipeconform.replication.again import Sought

        if self.violation is None or self.requirement is None:
            return None
        one = self.violation
        return Sought(requirement=self.requirement, status=one.status, signature=one.signature)

    @property
    def hung(self) -> bool:
        """Whether it showed a hang."""
        return self.violation is not None and self.violation.status == "hung"


@click.command(short_help="Execute a stored case again and judge it.")
@click.argument("stored", metavar="CASE.json|ID")
@impl_option()
@click.option(
    "--result",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=DEFAULT_RESULT,
    show_default=True,
    help="The result file in which ID is looked up.",
)
@click.option(
    "--requirement", metavar="ID", help="Judge by this requirement.  [default: every one that applies]"
)
@click.option(
    "--script",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a program that shows it without pipeconform, instead of executing it.",
)
@device_options
@attach_options
def replay(
    *,
    stored: str,
    impl: str,
    result: Path,
    requirement: str | None,
    script: Path | None,
    device: str,
    backend: str,
    ranks_per_device: int,
    **agents: Any,
) -> int:
    """Execute a stored case in fresh processes, or with --attach on those of agents, and judge it.

    The case is a JSON file, or the ID of a violation in a result file. Says REPRODUCED (exit code 1), FIXED
    (0) or that it shows another violation (1). With --script nothing is executed: a program is written, and an archive
    beside it, which judge the case in the same way where pipeconform is not installed.
    """
    require_supported_torch()
    attach = attach_from(agents)
    if attach is not None and script is not None:
        raise UsageError("--script executes nothing, so there is nothing for --attach to do")
    if script is not None and script.suffix != ".py":
        raise UsageError(f"--script {script}: expected a name that ends in .py")
    found = read_stored(stored, result=result)
    from pipeconform.execute.implementation import resolve

    resolve(impl)
    from pipeconform.campaign.options import Options
    from pipeconform.case.any_case import world_sizes
    from pipeconform.replication.again import judge_again, localised
    from pipeconform.replication.either import any_campaign_of, description_in, executor_of
    from pipeconform.report.localisation_text import localisation_lines

    sizes = world_sizes(found.case)
    options = Options(
        implementation=impl,
        ranks=(min(sizes), max(sizes)),
        device=device,
        backend=backend,
        ranks_per_device=ranks_per_device,
        attach=attach,
    )
    with any_campaign_of(options) as campaign:
        chosen = asked_of(found, requirement, campaign)
        if script is not None:
            return export(found, chosen, campaign, options=options, script=script)
        executor = executor_of(campaign, found.variant)
        say(heading(found, description_in(campaign), chosen))
        outcomes = judge_again(found.case, chosen, executor, hung=found.hung)
        localisation = localised(found.case, outcomes, executor)
    text, code = verdict(found, outcomes)
    say(text)
    for line in localisation_lines(localisation):
        say(line)
    return code


def read_stored(stored: str, *, result: Path) -> Stored:
    """A case file, or a violation of a result file by its id.

    Raises:
        BadCaseError: the case file cannot be read.
        BadResultError: the result file cannot be read.
        UnknownNameError: the result file has no violation of that id.
    """
    path = Path(stored)
    if path.suffix == ".json" or path.is_file():
        from pipeconform.case.any_case import decode_any_case

        return Stored(name=stored, case=decode_any_case(_text(path), source=stored))
    from pipeconform.report.result import read_result

    file = result / RESULT_NAME if result.is_dir() else result
    violations = {v.id: (cell, v) for cell in read_result(file).cells for v in cell.violations}
    if stored not in violations:
        if not violations:
            raise UsageError(f"{file} holds no violation, so there is nothing to replay")
        raise UnknownNameError(f"violation (in {file})", stored, violations)
    cell, violation = violations[stored]
    return Stored(
        name=stored,
        case=violation.case,
        requirement=cell.requirement,
        variant=cell.variant,
        violation=violation,
    )


def _text(path: Path) -> bytes:
    from pipeconform.reading import file_bytes

    data = file_bytes(path, error=BadCaseError)
    if b'"cells"' in data and b'"totals"' in data:
        raise BadCaseError(
            f"{path} is a result file: replay one of its violations by ID, with --result {path}"
        )
    return data


def heading(found: Stored, description: Described, chosen: tuple[Requirement, ...]) -> str:
    """What is judged by what, and the case."""
    from pipeconform.report.case_text import describe_case

    names = ", ".join(row.id for row in chosen)
    case = "\n".join(f"  {line}" for line in describe_case(found.case).splitlines())
    return f"{description.name} {description.version}, {found.name}, judged by {names}:\n{case}\n"


def verdict(found: Stored, outcomes: Outcomes) -> tuple[str, int]:
    """What to print about the outcomes by requirement, and the exit code."""
    from pipeconform.replication import again

    said = again.verdict(outcomes, found.sought)
    match said.kind:
        case "met":
            return f"FIXED: {', '.join(said.requirements)} met", 0
        case "another":
            assert found.sought is not None
            word = f"NOT REPRODUCED ({found.sought.signature}), but the case shows another violation:"
        case "violated":
            word = "VIOLATED:"
        case "reproduced":
            word = "REPRODUCED:"
    return f"{word}\n{said.text}", 1
