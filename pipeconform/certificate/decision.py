"""Whether a result deserves a level: a pure function of the two."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.certificate.claimed import claims_of, target_in
from pipeconform.certificate.sizes import lacking
from pipeconform.report.result import Cell, Result
from pipeconform.report.words import under
from pipeconform.schedule.families import families, family
from pipeconform.spec import CertificationLevel, core_requirements, mandatory
from pipeconform.spec.levels import needed_claims
from pipeconform.wrapper import WrapperClaims

__all__ = [
    "capabilities_of",
    "missing_claims",
    "reasons_against",
    "too_few_claimed",
    "too_few_schedules",
    "weakened_by",
    "weakening",
]

_UNREADABLE = "the claims of the implementation cannot be read"
_SEEN = "COM-7"


def reasons_against(level: CertificationLevel, result: Result) -> tuple[str, ...]:
    """Why `result` does not deserve `level`; empty if it does.

    Raises:
        LevelUnavailableError: this version of the standard cannot grant the level.
    """
    wanted = [row.id for row in mandatory(level)]
    kind = result.implementation.kind
    if kind != level.kind:
        return (f"level {level.title} is granted to a {level.kind}, and this is a {kind}",)
    cells = [cell for cell in result.cells if cell.requirement in set(wanted)]
    return (
        *_incomplete(wanted, cells, result),
        *_not_met(cells, counts=result.format >= 6),
        *_not_claimed(level, wanted, cells),
        *_lacking_claims(level, result),
        *_too_few(level, cells),
        *_sizes(level, cells, result),
        *_not_seen(cells, result),
    )


def _incomplete(wanted: list[str], cells: list[Cell], result: Result) -> Iterator[str]:
    if not result.run.complete:
        yield "the run was cut short"
    there = {(cell.requirement, cell.schedule, cell.variant) for cell in cells}
    variants = sorted({cell.variant for cell in cells} | {"default"})
    for name in wanted:
        absent = [s for s in _claimed(result) for v in variants if (name, s, v) not in there]
        if absent:
            yield f"{name} is missing{under(*dict.fromkeys(absent))}"


def _not_met(cells: list[Cell], *, counts: bool) -> Iterator[str]:
    """Requirements that are not met. `counts` says whether the result has counts of comparisons (format 6 or later)."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.status not in ("passed", "not_claimed"):
            found.setdefault((cell.requirement, cell.status), []).append(cell.schedule)
    for (name, status), schedules in found.items():
        yield f"{name} {status.replace('_', ' ')}{under(*dict.fromkeys(schedules))}"
    for cell in cells:
        if cell.status == "passed" and (cell.violations or not cell.judgements):
            yield f"{cell.requirement}{under(cell.schedule)} is called passed, but was not judged so"
        elif cell.status == "passed" and not cell.compared and counts:
            yield f"{cell.requirement}{under(cell.schedule)} is called passed, but compared nothing"


def _not_claimed(level: CertificationLevel, wanted: list[str], cells: list[Cell]) -> Iterator[str]:
    claimed = {cell.requirement for cell in cells if cell.status != "not_claimed"}
    present = {cell.requirement for cell in cells}
    yield from too_few_claimed(level, [name for name in wanted if name in present and name not in claimed])


def too_few_claimed(level: CertificationLevel, without: Sequence[str]) -> Iterator[str]:
    """Why a level cannot be had if the requirements `without` are claimed under no schedule."""
    for name in core_requirements(level):
        if name in without:
            yield f"{name} is not claimed under any schedule, and cannot be left out"
    total = len(mandatory(level))
    share = len(without) / total
    if share > level.not_claimed:
        yield (
            f"{len(without)} of {total} requirements are not claimed ({share:.0%}; at most "
            f"{level.not_claimed:.0%}): {', '.join(without)}"
        )


def _not_seen(cells: list[Cell], result: Result) -> Iterator[str]:
    """An implementation whose ranks are given more than they own must be seen to communicate, under every schedule."""
    claims = capabilities_of(result)
    if claims is None or "all" not in (claims.inputs_consumed_by, claims.targets_consumed_by):
        return
    seen = {cell.schedule for cell in cells if cell.requirement == _SEEN and cell.status == "passed"}
    unseen = [claim.name for claim in claims.schedules if claim.name not in seen]
    if unseen:
        yield (
            f"inputs or targets are claimed to be consumed by all ranks, and {_SEEN} was not met"
            f"{under(*unseen)}: nothing shows that it is a pipeline"
        )


def _lacking_claims(level: CertificationLevel, result: Result) -> Iterator[str]:
    capabilities = capabilities_of(result)
    if capabilities is not None:
        returned = {name for cell in result.cells for name in cell.unclaimed}
        yield from missing_claims(level, capabilities, returned=returned)


def missing_claims(
    level: CertificationLevel, capabilities: Capabilities, *, returned: Collection[str] = ()
) -> Iterator[str]:
    """Claims that the level needs and that are missing; features that are `returned` without a claim are named."""
    for name, words in needed_claims(level).items():
        if not _CLAIMED[name](capabilities):
            silent = (
                f"; it is returned, and has to be claimed to be judged as {name}" if name in returned else ""
            )
            yield f"level {level.title} cannot be had without this claim: {words}{silent}"


_CLAIMED: Mapping[str, Callable[[Capabilities], bool]] = MappingProxyType(
    {
        "outputs": lambda it: all(Feature.OUTPUTS in it.under(one).features for one in it.schedules),
        "trains": lambda it: any(one.trains for one in it.schedules),
        "split_backward": lambda it: any(one.trains and one.split_backward for one in it.schedules),
        "family": lambda it: all(one.family is not None for one in it.schedules),
        "data_parallel": lambda it: it.data_parallel is not None,
    }
)
"""How to find a claim that a level needs, by its name in ``levels.toml``."""


def _too_few(level: CertificationLevel, cells: list[Cell]) -> Iterator[str]:
    for cell in cells:
        if cell.judgements and cell.distinct_cases < level.examples:
            yield (
                f"{cell.requirement}{under(cell.schedule)} was judged on {cell.distinct_cases} distinct "
                f"cases, at least {level.examples} are needed"
            )


def _sizes(level: CertificationLevel, cells: list[Cell], result: Result) -> Iterator[str]:
    said = claims_of(result.implementation)
    if said is None:
        yield _UNREADABLE
        return
    if isinstance(said, WrapperClaims):
        yield from _numbers_of_replicas(level, cells, said)
        return
    claims = said.schedules
    yield from too_few_schedules(level, said)
    largest = 0
    for claim in claims:
        under = [cell for cell in cells if cell.schedule == claim.name and cell.judgements]
        sizes = {key for cell in under for key in cell.counts}
        ranks = {int(found[1]) for key in sizes if (found := re.match(r"p=(\d{1,9}),", key))}
        stages = {int(found[1]) for key in sizes if (found := re.search(r",v=(\d{1,9})$", key))}
        classes = {one for cell in under for one in cell.microbatches}
        largest = max(largest, *ranks, 0)
        absent = lacking(level, claim, ranks=ranks, stages_per_rank=stages, batches=classes)
        if absent:
            yield f"{claim.name} was never judged with {', '.join(absent)}"
    if claims and largest < 2:
        yield "nothing was judged on more than one rank"


def too_few_schedules(level: CertificationLevel, claims: Capabilities) -> Iterator[str]:
    """Why a level cannot be had with the number of schedules in `claims`."""
    number = len(claims.schedules)
    if number < level.min_schedules:
        yield f"{number} schedules are claimed, at least {level.min_schedules} are needed"


def _numbers_of_replicas(
    level: CertificationLevel, cells: list[Cell], claims: WrapperClaims
) -> Iterator[str]:
    judged = {
        int(found[1]) for cell in cells for key in cell.counts if (found := re.match(r"p=(\d{1,9}),", key))
    }
    absent = [str(p) for p in level.ranks if p <= claims.max_ranks and p not in judged]
    if absent:
        yield f"nothing was judged on {', '.join(absent)} replicas"


def _claimed(result: Result) -> tuple[str, ...]:
    """The columns that must have been judged: all that are claimed."""
    target = target_in(result.implementation, max_ranks=1, draws=None)
    return result.run.schedules if target is None else target.columns


def capabilities_of(result: Result) -> Capabilities | None:
    """The claims of a pipeline; None for a wrapper, or if the file does not contain them in this version's form."""
    found = claims_of(result.implementation)
    return found if isinstance(found, Capabilities) else None


def weakening(result: Result) -> tuple[str, ...]:
    """Claims of the implementation that let the suite see less of it, each with its consequence."""
    capabilities = capabilities_of(result)
    return () if capabilities is None else tuple(weakened_by(capabilities))


def weakened_by(claims: Capabilities) -> Iterator[str]:
    """What a certificate says of these claims because the suite sees less with them."""
    if claims.inputs_consumed_by == "all":
        yield 'inputs_consumed_by="all": ranks without the first stage are given finite inputs instead of NaN'
    if claims.targets_consumed_by == "all":
        yield 'targets_consumed_by="all": ranks without the last stage are given finite targets instead of NaN'
    if claims.kwargs_scope == "pipeline":
        yield 'kwargs_scope="pipeline": every rank is given the true keyword arguments of all stages'
    if claims.world == "single_process":
        yield 'world="single_process": nothing crosses between ranks that could be seen'
    if not claims.sub_groups:
        yield "sub_groups=False: every pipeline was the whole world, where a place in it is a rank of the world"
    for one in claims.schedules:
        yield from _of_family(one)
        lacking = sorted(feature.value for feature in one.lacks & claims.features)
        if lacking:
            yield f"{one.name} lacks {', '.join(lacking)}: what needs it is not judged there"


def _of_family(claim: ScheduleClaim) -> Iterator[str]:
    """What is not judged of a schedule, or by which other schedule's rules, where its name lets expect its own."""
    if claim.family is None:
        yield f"{claim.name}: no family is claimed, so its order, its bubble and its memory are not judged"
        return
    judged = family(claim.family)
    named = [one for one in families() if _plain(claim.name) in (_plain(one.name), _plain(one.title))]
    # a variant of a family has its title, and more words after a comma
    if named and judged not in named and _plain(judged.title.partition(",")[0]) != _plain(claim.name):
        yield f"{claim.name}: judged by the rules of {judged.title}, and not by those of {named[0].title}"


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())
