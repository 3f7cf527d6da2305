"""The program that a wrapper's exported case consists of, with two parts of `pipeconform.export` more.

It starts its own rank processes (or is started by torchrun), runs the case through the adapter, and then rank 0
compares with the module without a wrapper, by the judgements of the requirements. It may import torch, the standard
library, and, inside functions, the modules that the script carries.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeconform.export.process import DIFFERENT, NUMBER, UNFIT, WORLDS, load_adapter, watch

CASE = ""
JUDGES: dict[str, str] = {}

BETWEEN = "what the first world showed"  # a file
PART = 1 << 20  # bytes; a store loses the connection over some eight times as many


def load_case() -> Any:
    """The case, from the text above."""
    from pipeconform import sharding, wrapper
    from pipeconform.case import wrapper_case

    return eval(CASE, {**vars(sharding), **vars(wrapper), **vars(wrapper_case)})  # noqa: S307 - our own text


def rank_main(limit: float) -> int:
    """One rank. What the wrapper raises is judged; whatever else is raised here says nothing about it."""
    try:
        return run(limit)
    except Exception:
        traceback.print_exc()
        return UNFIT


def run(limit: float) -> int:
    """Run the case, then let rank 0 judge what all ranks have shown."""
    from pipeconform.replication.evidence import came_through
    from pipeconform.replication.rank import shown_by

    rank, number = int(os.environ["RANK"]), world_number()
    timer = watch(limit, rank)
    torch.set_num_threads(1)
    # results do not go through the group: a rank that raised leaves it with others inside
    store, _, size = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]  # public, says its page
    apart = dist.PrefixStore("group", store)  # type: ignore[attr-defined]  # likewise
    dist.init_process_group("gloo", store=apart, rank=rank, world_size=size)
    case, earlier = load_case(), before(number)
    two, own = bool(case.loaded_by), case
    if two:
        own = case.loading if number else case.saving
    checkpoint = earlier[0].checkpoint if earlier else b""
    mine = shown_by(load_adapter(), own, rank=rank, checkpoint=checkpoint)
    timer.cancel()  # who is through stays for those that are not: what hangs must not be freed by its end
    shown = collected(store, rank, size, mine)
    if shown is None:
        return 0
    if two and not number and came_through(shown):
        (folder() / BETWEEN).write_bytes(pickle.dumps(shown))
        return 0
    lines = told(case, shown, earlier)
    print("\n".join(lines) if lines else f"{', '.join(JUDGES)} met", flush=True)
    return DIFFERENT if lines else 0


def world_number() -> int:
    """Which world this process is of; leaves the program where torchrun has started another one than is needed."""
    number = int(os.environ.get(NUMBER, "0"))
    if len(WORLDS) > 1 and NUMBER not in os.environ:
        sys.exit(f"{len(WORLDS)} worlds are needed, of {WORLDS} ranks: run it with python, not with torchrun")
    if int(os.environ["WORLD_SIZE"]) != WORLDS[number]:
        sys.exit(f"{WORLDS[number]} ranks are needed, not {os.environ['WORLD_SIZE']}")
    return number


def folder() -> Path:
    """What the worlds of one program have in common."""
    return Path(os.environ["TMPDIR"])


def before(number: int) -> Any:
    """What the ranks of the world before showed; nothing in the first."""
    return pickle.loads((folder() / BETWEEN).read_bytes()) if number else ()  # noqa: S301 - our own file


def collected(store: Any, rank: int, size: int, mine: Any) -> Any:
    """What all ranks showed, on rank 0; None on the others, which stay until it has everything."""
    # a rank that hangs ends itself, and whoever has started the ranks ends the others
    patience = timedelta(days=1)
    store.set_timeout(patience)
    if rank:
        put(store, f"shown by {rank}", pickle.dumps(mine))
        with suppress(RuntimeError):  # rank 0 has ended, and the store with it
            store.wait(["all there"], patience)
            store.set(f"{rank} leaves", "")
        return None
    others = [pickle.loads(got(store, f"shown by {one}")) for one in range(1, size)]  # noqa: S301 - our own ranks
    store.set("all there", "")
    store.wait([f"{one} leaves" for one in range(1, size)], patience)  # the store is in this process
    return (mine, *others)


def put(store: Any, key: str, data: bytes) -> None:
    """Write to a store what may be long."""
    starts = range(0, len(data), PART)
    for number, start in enumerate(starts):
        store.set(f"{key}, part {number}", data[start : start + PART])
    store.set(key, str(len(starts)))


def got(store: Any, key: str) -> bytes:
    """What was put there."""
    return b"".join(store.get(f"{key}, part {number}") for number in range(int(store.get(key))))


def told(case: Any, shown: Any, earlier: Any) -> list[str]:
    """What breaks the requirements, in lines: what is expected, and what there is."""
    import importlib

    import msgspec

    from pipeconform.replication.evidence import distinct, evidence_of
    from pipeconform.replication.oracle import expected_of

    if earlier:
        first, *others = shown
        shown = (msgspec.structs.replace(first, earlier=earlier), *others)
    claims = load_adapter().describe().claims
    lines = []
    for requirement, name in JUDGES.items():
        module, _, function = name.partition(":")
        judge = getattr(importlib.import_module(module), function)
        evidence = evidence_of(case, shown, claims=claims, ask=expected_of)
        for finding in distinct(judge(evidence)):
            message = "\n".join(f"  {line}" for line in finding.message.splitlines())
            lines.append(f"{requirement}: {finding.kind}\n{message}")
    return lines
