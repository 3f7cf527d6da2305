"""In which order programs are run: as they come, or so that a run which is stopped early has seen every kind."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from benchmarks.programs.asked import Asked

__all__ = ["Waiting", "taking_turns"]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A violation by name, whose case is looked for only when its turn comes."""

    name: str
    requirement: str
    status: str
    look: Callable[[], Asked | None]

    @property
    def kind(self) -> tuple[str, str]:
        """Its chapter, and what it does: wrong values, an exception, a hang, the death of a rank."""
        return self.requirement.partition("-")[0], self.status


def taking_turns(several: Iterable[Waiting], *, seed: int) -> Iterator[Waiting]:
    """All of them in an order that `seed` decides, in which the kinds take turns."""
    kinds: dict[tuple[str, str], list[Waiting]] = defaultdict(list)
    for one in several:
        kinds[one.kind].append(one)
    drawn = random.Random(seed)
    for kind in kinds.values():
        drawn.shuffle(kind)
    rounds = zip_longest(*drawn.sample(list(kinds.values()), len(kinds)))
    return (one for one in chain.from_iterable(rounds) if one is not None)
