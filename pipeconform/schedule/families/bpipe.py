"""BPipe: 1F1B in which early ranks park activations on late ones, so that all hold about equally many.

Source: Kim et al., "BPipe: Memory-Balanced Pipeline Parallelism for Training Large Language Models", ICML 2023
(PMLR 202); the bound as restated in arXiv 2401.02088. Placement: loop with one stage per rank. Rank x < p/2
(the evictor) is paired with rank p−1−x (the acceptor): when x would hold more than ⌈(p+2)/2⌉ microbatches, it
sends one's activations to its partner (evict) and fetches them before their backward (load).

*Expressed*: the computations and their order, which are 1F1B's, and how many microbatches a rank has computed
forwards but not backwards (``in_flight``, as for 1F1B).

*Not expressed*: evict and load. The language's transfers carry a boundary to a neighbouring stage and nothing
else, so tables, traffic, timing and drawings know nothing of parked activations, and their transfer costs
nothing. What the scheme promises about memory is stated by `stored` instead, and it follows from the table: at
no time do the two ranks of a pair hold more than p + 1 together.

* computed but not yet backward on rank r: min(m, p−r); stored there after balancing: at most ⌈(p+2)/2⌉
* makespan bubble: (p−1)·(F + B), as 1F1B's
"""

from __future__ import annotations

import dataclasses

from pipeconform.schedule.families import one_f_one_b
from pipeconform.schedule.families.family import Size


def limit(num_ranks: int) -> int:
    """The most microbatches' activations that a rank stores, ⌈(p+2)/2⌉."""
    return (num_ranks + 3) // 2


def partner(rank: int, num_ranks: int) -> int:
    """The rank with which a rank is paired; the middle one of an odd number is paired with itself."""
    return num_ranks - 1 - rank


def stored(rank: int, size: Size) -> int:
    """The most microbatches' activations that a rank stores at a time, including those parked by its partner."""
    p = size.num_ranks
    own, others = (one_f_one_b.FAMILY.in_flight_weight(r, size) for r in (rank, partner(rank, p)))
    return min(own, limit(p)) + max(0, others - limit(p))


FAMILY = dataclasses.replace(
    one_f_one_b.FAMILY,
    name="bpipe",
    title="BPipe (its 1F1B order only)",
    source="ICML 2023; arXiv 2401.02088",
)
