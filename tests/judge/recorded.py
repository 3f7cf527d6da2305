"""Recorded traffic made by hand: what ranks did, as words.

``s1`` issues a send to rank 1, ``r0`` a receive from rank 0, ``r*`` one from any rank, ``c`` a collective; ``s1#7``
with tag 7; ``w3`` waits for the rank's operation 3. A capital issues and waits at once. ``[s1 r1]`` is a batch.
"""

from __future__ import annotations

from typing import Any, Literal

from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.operations import Layout, Moment, Operation

GROUP = "given"
_KINDS: dict[str, tuple[Literal["send", "receive", "collective"], str]] = {
    "s": ("send", "send"),
    "r": ("receive", "recv_"),
    "c": ("collective", "allreduce_"),
}


def traffic(text: str, *, ranks: int, layout: Layout | None = None, **others: Any) -> Traffic:
    """The traffic of one rank in a world of `ranks`, all of it on one group."""
    layout = layout or Layout("float32", (1,), (1,))
    operations: list[Operation] = []
    moments: list[Moment] = []
    batch, batches = -1, 0
    for word in text.replace("[", "[ ").replace("]", " ]").split():
        if word in "[]":
            batch, batches = (batches, batches + 1) if word == "[" else (-1, batches)
            continue
        letter, (peer, _, tag) = word[0], word[1:].partition("#")
        if letter == "w":
            moments.append(Moment("wait", int(peer)))
            continue
        kind, name = _KINDS[letter.lower()]
        rank = int(peer) if peer not in ("", "*") else -1
        number = len(operations)
        one = Operation(
            number, kind, name, GROUP, rank, rank, int(tag or 0), (layout,), 4, batch=batch, step=0
        )
        operations.append(one)
        moments.append(Moment("issue", number))
        if letter.isupper():
            moments.append(Moment("wait", number))
    made = {"groups": {GROUP: tuple(range(ranks))}, "given": GROUP, "default": "0"}
    return Traffic(**{**made, "operations": tuple(operations), "moments": tuple(moments), **others})


def of_ranks(*texts: str) -> dict[int, Traffic]:
    """The traffic of all ranks."""
    return {rank: traffic(text, ranks=len(texts)) for rank, text in enumerate(texts)}
