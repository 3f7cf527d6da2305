"""How large a case from a file may be: larger than any schedule needs, but not so large that it runs for hours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from pipeconform.case.model import Model
from pipeconform.case.program import Step
from pipeconform.case.world import World
from pipeconform.errors import BadCaseError

__all__ = ["MOST_RANKS", "bounded", "too_large", "too_large_wrapper"]

MOST_RANKS = 1024
_MOST_STAGES = 4096
_MOST_BLOCKS = 256
_MOST_STEPS = 1000
_MOST_SAMPLES = 65_536
_MOST_MICROBATCHES = 16_384
_MOST_WIDTH = 4096
_MOST_CLASSES = 65_536
_MOST_ELEMENTS = 1 << 24
_MOST_SECONDS = 600
_MOST_SEED = (1 << 63) - 1


class _AnyCase(Protocol):
    def too_large(self) -> Iterator[str]: ...


OneCase = TypeVar("OneCase", bound=_AnyCase)


def bounded(case: OneCase, *, source: str) -> OneCase:
    """Return the case if it can run in reasonable time.

    Raises:
        BadCaseError: it is too large; the message names the field, its value, the limit and what to do.
    """
    for reason in case.too_large():
        raise BadCaseError(f"{source}: {reason}")
    return case


def too_large(
    model: Model, world: World, program: Iterable[Step], *, stages_per_rank: int, seed: int
) -> Iterator[str]:
    """Yield what is too large in a pipeline case: name, value, limit and what to do."""
    program = tuple(program)
    named = [
        ("world.size", world.size, MOST_RANKS),
        ("the number of world.pipeline_ranks", len(world.pipeline_ranks), MOST_RANKS),
        ("stages_per_rank", stages_per_rank, _MOST_STAGES),
        ("the number of model.stages", len(model.stages), _MOST_STAGES),
        (
            "the number of blocks in a stage",
            max((len(s.blocks) for s in model.stages), default=0),
            _MOST_BLOCKS,
        ),
        ("the number of model.passages", len(model.passages), _MOST_BLOCKS),
        ("the number of model.carried", len(model.carried), _MOST_BLOCKS),
        ("the number of model.kwargs", len(model.kwargs), _MOST_STAGES),
        ("model.width", model.width, _MOST_WIDTH),
        ("model.sequence", model.sequence, _MOST_WIDTH),
        ("model.classes", model.classes, _MOST_CLASSES),
        ("the number of steps in program", len(program), _MOST_STEPS),
        ("the number of world.perturbations", len(world.perturbations), _MOST_STEPS),
    ]
    yield from _beyond(named)
    yield from _seed(seed)
    for one in world.perturbations:
        milliseconds = getattr(one, "milliseconds", 0)
        yield from _beyond([("milliseconds of a perturbation", milliseconds, 1000 * _MOST_SECONDS)])
    for index, step in enumerate(program):
        name, samples = f"program[{index}]", getattr(step, "batch_size", 0)
        yield from _beyond(
            [
                (f"{name}.batch_size", samples, _MOST_SAMPLES),
                (f"{name}.num_microbatches", getattr(step, "num_microbatches", 0), _MOST_MICROBATCHES),
                (
                    f"batch size × sequence × width of {name}",
                    samples * max(1, model.sequence) * max(1, model.width),
                    _MOST_ELEMENTS,
                ),
            ]
        )


def too_large_wrapper(
    *, ranks: int, loaded_by: int, steps: int, passes: int, forwards: int, seed: int
) -> Iterator[str]:
    """Yield what is too large in a wrapper case; `passes` counts those of a step, `forwards` those of a pass."""
    yield from _beyond(
        [
            ("ranks", ranks, MOST_RANKS),
            ("loaded_by", loaded_by, MOST_RANKS),
            ("the number of steps", steps, _MOST_STEPS),
            ("the number of passes in a step", passes, _MOST_STEPS),
            ("forwards of a pass", forwards, _MOST_STEPS),
        ]
    )
    yield from _seed(seed)


def _seed(seed: int) -> Iterator[str]:
    if not -_MOST_SEED <= seed <= _MOST_SEED:
        yield f"seed is outside ±{_MOST_SEED}; choose a smaller one"


def _beyond(named: list[tuple[str, int, int]]) -> Iterator[str]:
    for name, value, most in named:
        if value > most:
            shown = f"{value:,}" if value < 10**18 else "more than 10^18"
            yield f"{name} is {shown}; at most {most:,} can be run: make it smaller"
