"""What docs/learn shows: its schedules at equal work, their pictures, captions and table, and the script's outputs.

``python -m tests.docs.learning`` writes the pictures and the generated parts of the pages (``make pictures``); with
``--replay`` it first executes the cases of the defects, and keeps what is printed beside them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeconform import svg
from pipeconform.schedule import Costs, Simulation, draw_svg, family, generate, simulate

__all__ = ["DEFECTS", "LEARN", "LESSONS", "Lesson", "generated", "main", "pictures", "replay", "rewritten"]

ROOT = Path(__file__).resolve().parents[2]
LEARN = ROOT / "docs" / "learn"
CASES = LEARN / "cases"
RANKS, BATCH = 4, 8
"""Every picture has this many ranks, and a batch of this many times the smallest microbatch."""

_MARGINS, _UNIT = 200, 21
"""Pixels beside the lanes of a picture, and pixels per unit of time: schedules are compared by their length."""
_WRITTEN = re.compile(
    r"(?P<head><!-- (?P<name>[\w-]+): written by [^\n]*-->\n)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A schedule as the pages show it; all do the same work for the same batch."""

    name: str
    title: str
    family: str
    stages_per_rank: int = 1
    num_microbatches: int = BATCH

    @property
    def simulation(self) -> Simulation:
        """On four ranks, in units of a forward of an eighth of the batch through all layers of a rank."""
        return _simulated(self)

    @property
    def size(self) -> str:
        """In words."""
        stages = f", v = {self.stages_per_rank}" if self.stages_per_rank > 1 else ""
        return f"p = {RANKS}{stages}, m = {self.num_microbatches}"

    @property
    def step(self) -> float:
        """How long the step takes."""
        return self.simulation.makespan

    @property
    def idle(self) -> float:
        """How long the rank that idles most does so."""
        return float(self.simulation.makespan_bubble.max())

    @property
    def held(self) -> tuple[float, ...]:
        """Per rank, the most activations until the weight part, in eighths of the batch through a rank's layers."""
        whole = BATCH / self.num_microbatches / self.stages_per_rank
        return tuple(whole * pairs for pairs in self.simulation.peak_in_flight_weight.tolist())


@cache
def _simulated(lesson: Lesson) -> Simulation:
    table = generate(
        lesson.family,
        num_ranks=RANKS,
        stages_per_rank=lesson.stages_per_rank,
        num_microbatches=lesson.num_microbatches,
    )
    each = BATCH / lesson.num_microbatches / lesson.stages_per_rank
    return simulate(table, costs=Costs(forward=each, input_grad=each, weight_grad=each))


LESSONS = (
    Lesson(name="naive", title="One batch", family="gpipe", num_microbatches=1),
    Lesson(name="gpipe", title="GPipe", family="gpipe"),
    Lesson(name="one-f-one-b", title="1F1B", family="one_f_one_b"),
    Lesson(name="interleaved", title="Interleaved 1F1B", family="interleaved_one_f_one_b", stages_per_rank=2),
    Lesson(name="looped-bfs", title="Looped breadth-first", family="looped_bfs", stages_per_rank=2),
    Lesson(name="zb-h1", title="ZB-H1", family="zb_h1"),
    Lesson(name="zb-h2", title="ZB-H2", family="zb_h2"),
    Lesson(name="zb-v", title="ZB-V", family="zb_v", stages_per_rank=2),
    Lesson(name="v-half", title="V-Half", family="v_half", stages_per_rank=2),
    Lesson(name="v-min", title="V-Min", family="v_min", stages_per_rank=2),
    Lesson(name="dualpipe-v", title="DualPipeV", family="dualpipe_v", stages_per_rank=2),
)
_DRAWN = frozenset(lesson.name for lesson in LESSONS) - {"v-half", "v-min"}

DEFECTS = {
    "FWD-2": "torch",
    "TRN-4": "torch",
    "SPL-1": "torch",
    "SCH-8": "torch",
    "LIF-1": "torch",
    "COM-2": "pipeconform.reference_impl.faults.communication:DefaultGroup",
    "DPC-1": "torch",
    "TRC-3": "torch",
    "ERR-3": "torch",
    "DPW-24": "torch-ddp",
}
"""A requirement of each chapter, and the implementation on which its stored case is executed."""


def pictures() -> dict[str, str]:
    """Every picture of the pages, by the name of its file."""
    drawn = {
        f"{lesson.name}.svg": draw_svg(
            lesson.simulation,
            title=f"{lesson.title}, {lesson.size}",
            width=_MARGINS + round(_UNIT * min(lesson.step, 33)),
        )
        for lesson in LESSONS
        if lesson.name in _DRAWN
    }
    return {**drawn, "memory-and-time.svg": _memory_and_time()}


def generated() -> dict[str, str]:
    """The generated parts of the pages, by name."""
    shown = {lesson.name: _shown(lesson) for lesson in LESSONS if lesson.name in _DRAWN}
    cases = {requirement.lower(): _case(requirement) for requirement in DEFECTS}
    return {**shown, **cases, "comparison": _comparison()}


def replay(requirement: str) -> str:
    """What executing a chapter's case prints."""
    done = subprocess.run(
        [sys.executable, "-m", *_command(requirement)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def rewritten(page: str) -> str:
    """A page with its generated parts as they are now."""
    made = generated()
    return _WRITTEN.sub(lambda found: f"{found['head']}{made[found['name']]}{found['end']}", page)


def _command(requirement: str) -> tuple[str, ...]:
    case = (CASES / f"{requirement.lower()}.json").relative_to(ROOT).as_posix()
    return "pipeconform", "replay", case, "--impl", DEFECTS[requirement], "--requirement", requirement


def _case(requirement: str) -> str:
    """The command, and what it printed, without where the error begins and how it spreads."""
    printed = (CASES / f"{requirement.lower()}.txt").read_text("utf-8")
    _, *lines = (
        printed.partition("\nfirst wrong of ")[0].rstrip().splitlines()
    )  # without what the command says
    command = f"$ {' '.join(_command(requirement))}"
    return "\n".join(("```text", command, *(line.rstrip() for line in lines), "```", ""))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _held(lesson: Lesson) -> str:
    most = {_number(value) for value in lesson.held}
    return most.pop() if len(most) == 1 else ", ".join(map(_number, lesson.held))


def _shown(lesson: Lesson) -> str:
    holds = (
        f"every rank holds up to {_held(lesson)}"
        if len(set(lesson.held)) == 1
        else f"ranks 0 to {RANKS - 1} hold up to {_held(lesson)}"
    )
    words = (
        f"{lesson.title}, {lesson.size}: the step takes {_number(lesson.step)}, of which every rank idles "
        f"{_number(lesson.idle)} ({lesson.idle / lesson.step:.0%}); {holds}"
    )
    return f"![{words}](pictures/{lesson.name}.svg)\n\n*{words}.*\n"


def _comparison() -> str:
    lines = [
        "| schedule | step | idle | share | held, ranks 0 to 3 | idle time, in costs of one stage | held, in pairs |",
        "|---|---|---|---|---|---|---|",
    ]
    for lesson in LESSONS:
        known = family(lesson.family)
        bubble = (
            f"{known.bubble.kind} {'=' if known.bubble.exact else '≤'} {known.bubble.formula}"
            if known.bubble
            else "–"
        )
        cells = (
            lesson.title,
            _number(lesson.step),
            _number(lesson.idle),
            f"{lesson.idle / lesson.step:.0%}",
            _held(lesson),
            bubble,
            known.in_flight,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


_PLOT = (78.0, 44.0, 600.0, 300.0)
"""Left, top, width and height of the plot, in pixels."""
_INK, _MUTED, _RULE = "#22262b", "#6b7280", "#e3e6ea"
_BESIDE: dict[str, tuple[float, float, str]] = {
    "gpipe": (-10, 4, "end"),
    "interleaved": (0, -12, "middle"),
    "looped-bfs": (0, -12, "middle"),
    "zb-h1": (-10, 4, "end"),
    "v-min": (-10, 4, "end"),
}
"""Where a point's name stands beside it, where that is not at its right."""


def _memory_and_time() -> str:
    """All schedules but the naive one: the most that a rank holds, and the share of the step for which it idles."""
    left, top, width, height = _PLOT

    def x(held: float) -> float:
        return left + width * held / 9

    def y(share: float) -> float:
        return top + height * (1 - share / 0.32)

    shapes = [
        svg.element("rect", width="100%", height="100%", fill="#ffffff"),
        svg.text("What a rank holds against how long it idles", 18, 26, font_size=16, font_weight="bold"),
    ]
    for share in (0.0, 0.1, 0.2, 0.3):
        shapes.append(svg.element("path", d=f"M{left} {y(share):.1f}H{left + width}", stroke=_RULE))
        shapes.append(svg.text(f"{share:.0%}", left - 10, y(share) + 4, anchor="end", fill=_MUTED))
    shapes += [
        svg.text(str(held), x(held), top + height + 18, anchor="middle", fill=_MUTED) for held in range(10)
    ]
    shapes.append(
        svg.text(
            "held by the rank that holds most, in microbatches of a rank's layers",
            left + width / 2,
            top + height + 40,
            anchor="middle",
            fill=_MUTED,
        )
    )
    shapes.append(svg.text("idle", 18, top + 4, fill=_MUTED))
    for lesson in LESSONS[1:]:
        share, most = lesson.idle / lesson.step, max(lesson.held)
        across, down, anchor = _BESIDE.get(lesson.name, (10, 4, "start"))
        shapes.append(svg.element("circle", cx=x(most), cy=y(share), r=5, fill="#3b76c4"))
        shapes.append(svg.text(lesson.title, x(most) + across, y(share) + down, anchor=anchor, font_size=13))
    return svg.picture(
        shapes,
        width=left + width + 60,
        height=top + height + 56,
        xmlns="http://www.w3.org/2000/svg",
        font_family="Helvetica, Arial, 'DejaVu Sans', sans-serif",
        font_size="12",
        fill=_INK,
    )


def main(*options: str) -> None:
    """Write the pictures and the generated parts; with ``--replay``, execute the cases first."""
    if "--replay" in options:
        for requirement in DEFECTS:
            (CASES / f"{requirement.lower()}.txt").write_text(replay(requirement), "utf-8")
    for name, picture in pictures().items():
        (LEARN / "pictures" / name).write_text(picture, "utf-8")
    for page in LEARN.glob("*.md"):
        page.write_text(rewritten(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
