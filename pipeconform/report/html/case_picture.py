"""The smallest case as a picture: stages from left to right, each in the lane of its rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from pipeconform import svg
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Case, Stage
from pipeconform.case.perturbations import Perturbation
from pipeconform.report.html.claims import Owners
from pipeconform.report.html.figure import figure

__all__ = ["block_words", "draw_case", "stage_notes"]

_NARROWEST, _LETTER, _MARGIN = 128, 6.6, 30  # widths of the smallest box, a letter, the rest
_GAP, _LEFT, _RIGHT, _TOP = 32, 92, 58, 2
_HEAD, _ROW, _PAD, _BETWEEN, _APART = 24, 22, 6, 10, 4
_ARROW = 6
_PASSAGE = 24  # height of a tensor's path past the stages


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Positions: stages from left to right, pipeline ranks from top to bottom."""

    box: float
    """The width of a stage."""
    height: float
    """The height of a stage."""
    top: float

    @classmethod
    def of(cls, case: Case) -> _Layout:
        stages = case.model.stages
        words = [block_words(block, stage) for stage in stages for block in stage.blocks]
        words += [note for s in range(len(stages)) for note in stage_notes(case, s)]
        rows = max(len(stage.blocks) + len(stage_notes(case, s)) for s, stage in enumerate(stages))
        return cls(
            box=max(_NARROWEST, _MARGIN + _LETTER * max(map(len, words), default=0)),
            height=_HEAD + rows * _ROW + _PAD,
            top=_TOP + len(case.model.passages) * _PASSAGE,
        )

    @property
    def lane(self) -> float:
        return self.height + _BETWEEN

    def left(self, stage: int) -> float:
        return _LEFT + stage * (self.box + _GAP)

    def lane_top(self, rank: int) -> float:
        return self.top + rank * (self.lane + _APART)

    def middle(self, rank: int) -> float:
        return self.lane_top(rank) + self.lane / 2


def draw_case(
    case: Case, *, owners: Owners, labels: Sequence[str], bad_stage: int | None, bad_rank: int | None
) -> Markup:
    """The picture as SVG; `labels` names the pipeline ranks. The stage and pipeline rank at fault are marked."""
    layout = _Layout.of(case)
    width = layout.left(case.num_stages) - _GAP + _RIGHT
    parts: list[str] = []
    for rank, label in enumerate(labels):
        bad = rank == bad_rank
        cls = "lane-back bad" if bad else "lane-back"
        parts.append(svg.rect(0.5, layout.lane_top(rank), width - 1, layout.lane, cls=cls))
        words = f"✗ {label}" if bad else label
        parts.append(svg.text(words, 10, layout.middle(rank) + 4, cls="lane bad" if bad else "lane"))
    parts += _passages(case, owners, layout)
    for path in _paths(case, owners):
        parts += _arrows(path, layout, result="loss" if case.trains else "output")
    for s, stage in enumerate(case.model.stages):
        for rank in sorted(owners[s]):
            parts += _stage(case, s, stage, layout=layout, rank=rank, bad=s == bad_stage)
    return figure(parts, width=width, height=layout.lane_top(case.num_ranks), title=_title(case), cls="case")


def _title(case: Case) -> str:
    return (
        f"{case.num_stages} stages on {case.num_ranks} ranks, {case.stages_per_rank} on each; "
        f"the same in words is below"
    )


def _passages(case: Case, owners: Owners, layout: _Layout) -> Iterator[str]:
    """The tensors that pass several stages, drawn above the lanes from the stage that makes them to the last user."""
    for number, one in enumerate(case.model.passages):
        y = _TOP + number * _PASSAGE + 12
        begin, end = (layout.left(s) + layout.box / 2 + 9 * number for s in (one.source, one.last))
        down, up = (layout.lane_top(min(owners[s])) + 2 for s in (one.source, one.last))
        yield svg.line(((begin, down), (begin, y), (end, y), (end, up)), cls="past")
        yield svg.text(f"{one.kind} tensor", (begin + end) / 2, y - 3, cls="small", anchor="middle")


def _paths(case: Case, owners: Owners) -> list[list[int]]:
    """The ranks that a microbatch passes, stage by stage; two paths if each stage is on two ranks."""
    home = [s % case.num_ranks for s in range(case.num_stages)]
    one = [min(ranks, key=lambda r, at=at: abs(r - at)) for ranks, at in zip(owners, home, strict=True)]  # type: ignore[misc]
    other = [max(ranks, key=lambda r, at=at: abs(r - at)) for ranks, at in zip(owners, home, strict=True)]  # type: ignore[misc]
    return [one] if one == other else [one, other]


def _arrows(path: Sequence[int], layout: _Layout, *, result: str) -> Iterator[str]:
    """The path of a microbatch: into the first stage, from stage to stage, out of the last one."""
    middle = [layout.middle(rank) for rank in path]
    yield from _arrow(((layout.left(0) - 16, middle[0]), (layout.left(0), middle[0])))
    for s in range(len(path) - 1):
        begin, end = layout.left(s) + layout.box, layout.left(s + 1)
        turn = begin + _GAP / 2
        yield from _arrow(
            ((begin, middle[s]), (turn, middle[s]), (turn, middle[s + 1]), (end, middle[s + 1]))
        )
    out = layout.left(len(path) - 1) + layout.box
    yield from _arrow(((out, middle[-1]), (out + 16, middle[-1])))
    yield svg.text(result, out + 19, middle[-1] + 4, cls="small")


def _arrow(points: Sequence[tuple[float, float]]) -> Iterator[str]:
    x, y = points[-1]
    yield svg.line(points, cls="way")
    yield svg.line(((x - _ARROW, y - _ARROW / 1.5), (x - 1, y), (x - _ARROW, y + _ARROW / 1.5)), cls="way")


def _stage(case: Case, number: int, stage: Stage, *, layout: _Layout, rank: int, bad: bool) -> Iterator[str]:
    x, y = layout.left(number), layout.lane_top(rank) + _BETWEEN / 2
    frozen = " frozen" if stage.frozen else ""
    yield svg.rect(x, y, layout.box, layout.height, cls=f"stage{frozen}{' bad' if bad else ''}")
    yield svg.text(f"stage {number}", x + 10, y + 17, cls="stage-name")
    if bad:
        yield svg.rect(x + layout.box - 57, y + 4, 52, 17, cls="tag")
        yield svg.text("✗ here", x + layout.box - 31, y + 16.5, cls="tag-words", anchor="middle")
    at = y + _HEAD
    for block in stage.blocks:
        still = block.frozen or stage.frozen
        yield svg.rect(x + 7, at, layout.box - 14, _ROW - 4, cls="block frozen" if still else "block")
        yield svg.text(block_words(block, stage), x + 13, at + 13, cls="block-words")
        at += _ROW
    for note in stage_notes(case, number):
        yield svg.text(note, x + 10, at + 13, cls="small")
        at += _ROW


def block_words(block: AnyBlock, stage: Stage) -> str:
    """A block in a word or two: ``Linear, no bias``, ``Shared, used twice``."""
    words = [type(block).__name__, *_SAID_OF.get(type(block).__name__, ())]
    for name in block.__struct_fields__:
        value = getattr(block, name)
        if name == "bias" and value is False:
            words.append("no bias")
        elif isinstance(value, str):
            words.append(f"same {value}" if name == "what" else value)
        elif value is True and name != "bias" and not (name == "frozen" and stage.frozen):
            words.append(name)
    return ", ".join(words)


_SAID_OF: Mapping[str, tuple[str, ...]] = MappingProxyType({"Shared": ("used twice",)})
"""Notes on blocks that their names and fields do not express."""


def stage_notes(case: Case, number: int) -> tuple[str, ...]:
    """Further properties of a stage."""
    notes = ["frozen"] if case.model.stages[number].frozen else []
    notes += [f"keyword: {one.kind}" for one in case.model.kwargs if one.stage == number]
    notes += [f"makes a {one.kind} tensor" for one in case.model.passages if one.source == number]
    notes += [f"uses the {one.kind} tensor" for one in case.model.passages if number in one.users]
    notes += [
        f"{one.what} {one.when} {one.part}"
        for one in case.world.perturbations
        if isinstance(one, Perturbation) and one.stage == number
    ]
    return tuple(notes)
