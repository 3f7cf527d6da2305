"""Running programs as far as they can, to find out where they stop.

A program is a run of consecutive *nodes*; a node is done when the node before it in its program and up to
two other nodes are. Which nodes get done does not depend on the order in which programs are tried, so one pass that
visits each node once is enough.
"""

from __future__ import annotations


def run_programs(offsets: list[int], *needs: list[int]) -> tuple[list[int], bytearray]:
    """Where each program stops (its end if it finished) and which nodes are done.

    Program k owns the nodes ``offsets[k]`` to ``offsets[k+1] − 1``; each of the two lists in ``needs`` has
    one entry per node: a node to wait for, or −1.
    """
    one, two = needs
    done = bytearray(offsets[-1]) + b"\1"  # the last entry is for node −1
    waiting: dict[int, list[int]] = {}
    position = offsets[:-1]
    todo = list(range(len(position) - 1, -1, -1))
    while todo:
        program = todo.pop()
        node, stop = position[program], offsets[program + 1]
        while node < stop:
            if not done[one[node]]:
                waiting.setdefault(one[node], []).append(program)
                break
            if not done[two[node]]:
                waiting.setdefault(two[node], []).append(program)
                break
            done[node] = 1
            if node in waiting:
                todo += waiting.pop(node)
            node += 1
        position[program] = node
    return position, done
