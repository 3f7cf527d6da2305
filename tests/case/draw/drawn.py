"""Cases drawn by seeds, without Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Iterable

from pipeconform.adapter import Capabilities
from pipeconform.case.case import Case
from pipeconform.case.draw.cases import draw_case
from pipeconform.case.draw.claimed import is_claimed, reachable
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.focus import Focus, Limits

__all__ = ["choosing", "drawn_under"]


def choosing(seed: int):
    """Choices for a `Drawing`."""
    generator = random.Random(seed)
    return lambda table: table[generator.randrange(len(table))]


def drawn_under(capabilities: Capabilities, focus: Focus, seeds: Iterable[int] = range(2)) -> list[Case]:
    """A case per seed, under every schedule for which the subject is claimed."""
    limits, seeds = Limits(capabilities=capabilities, max_ranks=4), tuple(seeds)
    return [
        draw_case(Drawing(choosing(seed), limits, claim), SUBJECTS[focus])
        for claim in capabilities.schedules
        if is_claimed(focus, claim, capabilities) and reachable(limits, claim, focus)
        for seed in seeds
    ]
