"""Why programs do not finish: the shortest circle of nodes that wait for one another."""

from __future__ import annotations

import bisect
from collections import deque

from pipeconform.schedule.progress import run_programs

__all__ = ["shortest_circle"]


def shortest_circle(offsets: list[int], one: list[int], two: list[int]) -> list[tuple[int, int]] | None:
    """Run the programs; if some are stuck, (node that cannot start, node it waits for) of the shortest circle.

    The arguments are those of `run_programs`. None if every program finishes. Of several shortest circles, that of the
    lowest program is returned.
    """
    position, done = run_programs(offsets, one, two)
    stuck = {k: node for k, node in enumerate(position) if node < offsets[k + 1]}
    if not stuck:
        return None
    edges: dict[int, list[tuple[int, int]]] = {}
    for program, node in stuck.items():
        targets = [need for need in (one[node], two[node]) if need >= 0 and not done[need]]
        edges[program] = [(need, bisect.bisect_right(offsets, need) - 1) for need in targets]
    best: list[tuple[int, int]] = []
    for origin in sorted(stuck):
        found = _circle_from(origin, edges, stuck, shorter_than=len(best))
        if found:
            best = found
    return best


def _circle_from(
    origin: int, edges: dict[int, list[tuple[int, int]]], stuck: dict[int, int], *, shorter_than: int
) -> list[tuple[int, int]]:
    """Breadth-first search from one program back to itself; empty if there is no circle, or no shorter one."""
    came: dict[int, tuple[int, int]] = {}
    depth = {origin: 0}
    todo = deque([origin])
    while todo:
        program = todo.popleft()
        if shorter_than and depth[program] + 1 >= shorter_than:
            break
        for need, target in edges[program]:
            if target == origin:
                circle = [(stuck[program], need)]
                while program != origin:
                    program, earlier = came[program]
                    circle.append((stuck[program], earlier))
                return circle[::-1]
            if target not in depth:
                depth[target] = depth[program] + 1
                came[target] = (program, need)
                todo.append(target)
    return []
