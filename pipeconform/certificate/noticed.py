"""Comparing a package's canaries with the faults that the level runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from pipeconform.campaign.trial import Fault
from pipeconform.certificate.canaries import faults_of
from pipeconform.certificate.contents import CANARIES, Canary, Contents
from pipeconform.certificate.package import Doubt

__all__ = ["canary_doubts"]

_SHOWN = re.compile(r"(failed|hung|crashed|error): \S.*", re.DOTALL)


def canary_doubts(wanted: list[str], contents: Contents) -> Iterator[Doubt]:
    """Doubts about faults of the requirements `wanted` that were not tried and detected on every machine."""
    faults = {fault.name: fault for fault in faults_of(wanted)}
    runs, on_cpu = _runs(contents), contents.result.environment.device == "cpu"
    for shard, run_id in runs.items():
        own = [canary for canary in contents.canaries if canary.shard == shard]
        where = f" (shard {shard})" if shard else ""
        tried = Counter(canary.fault for canary in own)
        for name in [name for name in faults if name not in tried]:
            text = f"{name} was not tried{where}, which {faults[name].requirement} must notice"
            yield Doubt(file=CANARIES, field="fault", text=text)
        for name, number in tried.items():
            if number > 1:
                yield Doubt(file=CANARIES, field="fault", text=f"{name} appears {number} times{where}")
        for canary in own:
            yield from _canary(canary, faults.get(canary.fault), run_id, on_cpu=on_cpu)
    for shard in sorted({canary.shard for canary in contents.canaries} - runs.keys()):
        text = f"{shard!r} is not a shard of this package" if shard else "from a whole run, not from shards"
        yield Doubt(file=CANARIES, field="shard", text=text)


def _runs(contents: Contents) -> dict[str, str]:
    """The id of each shard's run; by the empty name that of a whole run."""
    certificate = contents.certificate
    names = [certificate.shard]
    if (not certificate.shard and any(canary.shard for canary in contents.canaries)) or len(
        certificate.run_ids
    ) > 1:
        names = [f"{number}/{certificate.shards}" for number in range(1, len(certificate.run_ids) + 1)]
    return dict(zip(names, certificate.run_ids, strict=False))


def _canary(canary: Canary, fault: Fault | None, run_id: str, *, on_cpu: bool) -> Iterator[Doubt]:
    if fault is None:
        text = f"{canary.fault!r} is not a fault that this level runs"
        yield Doubt(file=CANARIES, field="fault", text=text)
        return
    for field, said, known in (
        ("requirement", canary.requirement, fault.requirement),
        ("schedule", canary.schedule, fault.schedule),
        ("expected", canary.expected, fault.expected_status),
        ("run_id", canary.run_id, run_id),
    ):
        if said != known:
            yield Doubt(file=CANARIES, field=field, text=f"{canary.fault}: {said!r}, expected {known!r}")
    if not canary.detected:
        text = f"{canary.fault} was not detected: {canary.requirement} would not have noticed it here"
        yield Doubt(file=CANARIES, field="detected", text=text)
    plain = all(_SHOWN.fullmatch(one) and one.isprintable() for one in canary.shown)
    if not plain or len(set(canary.shown)) < len(canary.shown):
        text = f"{canary.fault} showed something else than statuses and signatures: {list(canary.shown)}"
        yield Doubt(file=CANARIES, field="shown", text=text)
    shows = (f"{canary.expected}: ", *(("hung: ",) if fault.or_hangs and not on_cpu else ()))
    if canary.detected and not any(one.startswith(shows) for one in canary.shown):
        text = f"{canary.fault} was detected by {canary.expected!r}, but that is not among what it showed"
        yield Doubt(file=CANARIES, field="shown", text=text)
    if not (math.isfinite(canary.seconds) and canary.seconds >= 0):
        yield Doubt(file=CANARIES, field="seconds", text=f"{canary.fault}: {canary.seconds}")
