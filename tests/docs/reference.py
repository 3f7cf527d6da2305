"""The pages of docs/reference: features and families that there are, and the public names.

``python -m tests.docs.reference`` writes them (``make standard``); tests/docs/api.py fills the pages of names.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

from pipeconform.claims import Claimable, Feature
from pipeconform.commands.show import describe_feature
from pipeconform.schedule import Family, draw_text, families, generate, simulate
from pipeconform.schedule.families import Size
from pipeconform.spec.wrappers import all_requirements
from pipeconform.wrapper import WrapperFeature
from tests.docs.api import API_PAGES, FOLDER, filled

__all__ = ["FOLDER", "PAGES", "anchor_of", "families_page", "features_page", "main"]

RANKS, MICROBATCHES = 4, 8
_NEEDED = re.compile(r"\b([A-Z]{3}-\d+)  ")


_FEATURES = """\
An adapter claims the optional features that its implementation documents; none is on by default. What is not claimed is
reported as *not claimed*, and what is claimed is judged. `pipeconform show kwargs` prints an entry of this page,
`pipeconform claims my_adapter.py:MyAdapter` what your adapter could claim next."""
_FAMILIES = """\
The schedules that pipeconform knows by name: as `ScheduleClaim(family=…)` in an adapter's claims, whose order, memory
and idle time are judged then, and as `--name` of `pipeconform schedule`. p ranks, v stages per rank, m microbatches in
rounds of g; F, I, W and B = I + W are the times of one *stage*. [Schedules in pictures](../learn/schedules.md) explains
most of them, [the schedule language](../schedules.md) how tables are written."""
_ALONE = "needed by no requirement by itself; it decides what cases may contain"


def features_page() -> str:
    """Every optional feature: what it means, how it is claimed, and what needs it."""
    return "\n".join(
        [
            "<!-- Generated from pipeconform/claims.py and pipeconform/wrapper.py by 'make standard'. -->",
            "",
            "# Features",
            "",
            _FEATURES,
            "",
            "## Of pipelines",
            "",
            *_entries(Feature),
            "## Of data-parallel wrappers",
            "",
            *_entries(WrapperFeature),
        ]
    )


def _entries(features: Iterable[Claimable]) -> Iterator[str]:
    for feature in features:
        text = describe_feature(feature)
        (claim,) = re.findall(r"^Claim +(.+)$", text, re.MULTILINE)
        place, line = claim.split(": ", 1)
        needed = ", ".join(map(_linked, _NEEDED.findall(text)))
        yield f"### {feature.value}"
        yield ""
        yield f"`{type(feature).__name__}.{feature.name}`: {feature.meaning}."
        yield ""
        yield f"- claim, {place}: `{line}`"
        yield f"- {f'needed by {needed}' if needed else _ALONE}"
        yield ""


def anchor_of(heading: str) -> str:
    """What the site and GitHub call the place of a heading."""
    return re.sub(r"[^\w-]+", "", heading.lower().replace(" ", "-"))


def _linked(identifier: str) -> str:
    (row,) = (row for row in all_requirements() if row.id == identifier)
    anchor = anchor_of(f"{row.id} {row.title}")
    return f'[{row.id}](../standard.md#{anchor} "{row.title}")'


def families_page() -> str:
    """Every schedule family: its source, sizes, order, bounds, and its table drawn."""
    lines = [
        "<!-- Generated from pipeconform/schedule/families by 'make standard'; change it there. -->",
        "",
        "# Schedule families",
        "",
        _FAMILIES,
        "",
    ]
    first: dict[ModuleType, str] = {}
    for one in families():
        lines += [f"## {one.name}", "", *_facts(one), ""]
        module = _module_of(one)
        if module in first:
            lines += [f"Its order is described under [{first[module]}](#{first[module]}).", ""]
        else:
            first[module] = one.name
            lines += [*_told(inspect.getdoc(module) or ""), ""]
        lines += ["```text", *_drawn(one), "```", ""]
    return "\n".join(lines)


def _module_of(one: Family) -> ModuleType:
    """The file in which a family stands."""
    return next(
        module
        for module in vars(sys.modules[Size.__module__.rpartition(".")[0]]).values()
        if isinstance(module, ModuleType) and any(found is one for found in vars(module).values())
    )


def _facts(one: Family) -> Iterator[str]:
    backward = "none" if one.forward_only else "in two parts, I and W" if one.splits_backward else "whole"
    yield f"**{one.title}**, from {one.source}."
    yield ""
    yield f"- placement: {one.placement}; backward: {backward}"
    yield f"- held on rank r: {one.in_flight}"
    if one.bubble is not None:
        relation = "=" if one.bubble.exact else "≤"
        yield f"- idle time of the worst rank, in its {one.bubble.kind}: {relation} {one.bubble.formula}"


def _told(text: str) -> Iterator[str]:
    """A module's docstring as Markdown: without its title, and with its tables as they stand."""
    for paragraph in text.split("\n\n")[1:]:
        if paragraph.startswith("==="):
            yield from ("```text", paragraph, "```", "")
        else:
            yield from (paragraph, "")


def _drawn(one: Family) -> Iterator[str]:
    stages = next(v for v in (2, 1) if one.refusal(Size(RANKS, v, MICROBATCHES)) is None)
    table = generate(one.name, num_ranks=RANKS, stages_per_rank=stages, num_microbatches=MICROBATCHES)
    yield f"{one.title}, p = {RANKS}, v = {stages}, m = {MICROBATCHES}"
    yield from (line.rstrip() for line in draw_text(simulate(table)).splitlines())


PAGES = {"features.md": features_page, "families.md": families_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")
    for name in API_PAGES:
        (FOLDER / name).write_text(filled((FOLDER / name).read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
