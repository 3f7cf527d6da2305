"""``pipeconform replay``: execute a stored case once more and say whether it still fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeconform.commands.exporting import export
from pipeconform.commands.options import attach_from, attach_options, device_options, impl_option
from pipeconform.commands.say import say
from pipeconform.errors import BadCaseError, NothingJudgedError, UnknownNameError, UsageError
from pipeconform.reading import file_bytes
from pipeconform.report.location import DEFAULT_RESULT, RESULT_NAME
from pipeconform.run.supported import require_supported_torch

if TYPE_CHECKING:
    from pipeconform.adapter import Description
    from pipeconform.campaign.setup import Described
    from pipeconform.case.any_case import AnyCase
    from pipeconform.case.case import Case
    from pipeconform.judge.outcome import Outcome
    from pipeconform.observe.observation import Watched
    from pipeconform.report.result import Violation
    from pipeconform.spec import Requirement

__all__ = ["Stored", "heading", "read_stored", "replay", "verdict"]

_WIDTH = 98  # columns of a picture; lines to be read are not wider anywhere else


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
    def pipeline(self) -> Case:
        """The case, where it is a pipeline's."""
        from pipeconform.case.case import Case

        assert isinstance(self.case, Case), "a wrapper's case is replayed by itself"
        return self.case


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
    (0) or that it shows another violation (1). With --script nothing is executed: the program that is written needs
    torch and the engine only, compares with the unpipelined model, and can be attached to a report.
    """
    require_supported_torch()
    attach = attach_from(agents)
    if attach is not None and script is not None:
        raise UsageError("--script executes nothing, so there is nothing for --attach to do")
    found = read_stored(stored, result=result)
    from pipeconform.run.implementation import resolve

    resolve(impl)
    from pipeconform.case.wrapper_case import WrapperCase

    if isinstance(found.case, WrapperCase):
        from pipeconform.campaign.options import Options
        from pipeconform.commands.replay_wrapper import export_wrapper, replay_wrapper

        options = Options(implementation=impl, device=device, backend=backend, attach=attach)
        if script is not None:
            return export_wrapper(found, found.case, requirement=requirement, options=options, script=script)
        return replay_wrapper(found, found.case, requirement=requirement, options=options)
    from pipeconform.spec import requirement as find

    asked = find(requirement) if requirement is not None else None
    if script is not None:
        return export(found, impl=impl, script=script)
    from pipeconform.campaign.judging import judge
    from pipeconform.campaign.localising import localise
    from pipeconform.campaign.options import Options
    from pipeconform.campaign.setup import campaign_of
    from pipeconform.case.strategies import Focus
    from pipeconform.judge.registry import JUDGEMENTS
    from pipeconform.report.localisation_text import localisation_lines

    size = found.pipeline.world.size
    options = Options(
        implementation=impl,
        ranks=(size, size),
        device=device,
        backend=backend,
        ranks_per_device=ranks_per_device,
        attach=attach,
    )
    with campaign_of(options) as campaign:
        if found.variant not in campaign.executors:
            raise UnknownNameError("environment variant", found.variant, campaign.executors)
        executor = campaign.executors[found.variant]
        chosen = _requirements(found, asked, executor.description)
        if not all(Focus.EDGE in JUDGEMENTS[row.id].draws for row in chosen):
            _check_claimed(found.pipeline, executor.description)
        say(heading(found, executor.description, chosen))
        execution = executor.execute(found.pipeline, observe=_observed(found, chosen))
        outcomes = {row.id: judge(row, execution, executor) for row in chosen}
        shown = [one for several in outcomes.values() for one in several]
        localisation = localise(found.pipeline, shown, executor)
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
    data = file_bytes(path, error=BadCaseError)
    if b'"cells"' in data and b'"totals"' in data:
        raise BadCaseError(
            f"{path} is a result file: replay one of its violations by ID, with --result {path}"
        )
    return data


def _check_claimed(case: Case, description: Description) -> None:
    """Refuse a case that the implementation does not claim: it would be refused, not judged."""
    claim = description.capabilities.schedule(case.schedule)
    if claim is None:
        known = [one.name for one in description.capabilities.schedules]
        raise UnknownNameError(f"schedule (of {description.name})", case.schedule, known)
    p, v = case.num_ranks, case.stages_per_rank
    for run in case.runs:
        m = run.num_microbatches
        if not claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m):
            raise UsageError(
                f"{description.name} does not claim {case.schedule} with p = {p}, v = {v}, m = {m}; "
                f"'pipeconform list --schedules' shows what it claims"
            )


def _check_suits(found: Stored) -> None:
    """Refuse a violation whose case is not one that its requirement judges: the file was changed."""
    from pipeconform.judge.registry import JUDGEMENTS

    judgement = JUDGEMENTS.get(found.requirement or "")
    if judgement is None or not judgement.applies(found.pipeline):
        raise BadCaseError(
            f"{found.name}: {found.requirement} is not about the case that is stored with it; "
            f"--requirement ID judges the case by another one"
        )


def _requirements(
    found: Stored, asked: Requirement | None, description: Description
) -> tuple[Requirement, ...]:
    from pipeconform.judge.registry import JUDGEMENTS
    from pipeconform.spec import requirement, requirements

    if asked is None and found.requirement is not None:
        _check_suits(found)
        return (requirement(found.requirement),)
    wanted = requirements() if asked is None else (asked,)
    claim = description.capabilities.schedule(found.pipeline.schedule)

    def speaks(row: Requirement) -> bool:
        judgement = JUDGEMENTS.get(row.id)
        if judgement is None or not judgement.applies(found.pipeline):
            return False
        return claim is None or bool(judgement.foci(claim, description.capabilities))

    chosen = tuple(row for row in wanted if speaks(row))
    if chosen:
        return chosen
    if asked is not None:
        raise UsageError(
            f"{asked.id} says nothing about this case; leave --requirement out to judge it by all that do"
        )
    raise NothingJudgedError("no requirement says anything about this case")


def _observed(found: Stored, chosen: tuple[Requirement, ...]) -> set[Watched]:
    """What the judgements need; of what hung before, also who waits for whom: that proves a hang, and soon."""
    from pipeconform.judge.registry import JUDGEMENTS

    observe = {watched for row in chosen for watched in JUDGEMENTS[row.id].observe}
    if found.violation is not None and found.violation.status == "hung":
        observe.add("waits")
    return observe


def heading(found: Stored, description: Described, chosen: tuple[Requirement, ...]) -> str:
    """What is judged by what, and the case."""
    from pipeconform.report.case_text import describe_case

    names = ", ".join(row.id for row in chosen)
    case = "\n".join(f"  {line}" for line in describe_case(found.case).splitlines())
    return f"{description.name} {description.version}, {found.name}, judged by {names}:\n{case}\n"


def verdict(found: Stored, outcomes: dict[str, tuple[Outcome, ...]]) -> tuple[str, int]:
    """What to print about the outcomes by requirement, and the exit code."""
    first: dict[tuple[str, str, str], Outcome] = {}
    alike: Counter[tuple[str, str, str]] = Counter()
    for name, several in outcomes.items():
        for outcome in several:
            key = (name, outcome.status.value, outcome.finding.kind)
            first.setdefault(key, outcome)
            alike[key] += 1
    if not first:
        return f"FIXED: {', '.join(outcomes)} met", 0
    word, expected = "REPRODUCED:", found.violation
    if expected is not None:
        same = {key: first[key] for key in first if key[1:] == (expected.status, expected.signature)}
        if not same:
            word = f"NOT REPRODUCED ({expected.signature}), but the case shows another violation:"
        first = same or first
    return "\n".join([word, *(_told(key[0], first[key], alike[key]) for key in first)]), 1


def _told(name: str, outcome: Outcome, alike: int) -> str:
    from pipeconform.report.timeline_text import timeline_lines

    finding = outcome.finding
    where = f" ({finding.where()})" if finding.where() else ""
    message = "\n".join(f"  {line}" for line in finding.message.splitlines())
    more = f"\n  … and {alike - 1} more like it" if alike > 1 else ""
    picture = timeline_lines(outcome.timeline, first_wrong=outcome.first_wrong, width=_WIDTH)
    drawn = "".join(f"\n  {line}" for line in picture)
    return f"{name} {outcome.status}: {finding.kind}{where}\n{message}{drawn}{more}"
