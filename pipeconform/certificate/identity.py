"""Checking that all files of a package are about the same implementation, machine and run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import msgspec

from pipeconform.adapter import ErrorContract
from pipeconform.campaign.targets import CLAIMS
from pipeconform.certificate.claimed import convertible
from pipeconform.certificate.contents import (
    CERTIFICATE,
    CERTIFICATE_FORMAT,
    ENVIRONMENT,
    LOGS,
    RESULT,
    Contents,
    MachineEnvironment,
    adapter_name,
    claims_of_result,
    digest_of,
)
from pipeconform.certificate.decision import weakening
from pipeconform.certificate.fields import is_time
from pipeconform.certificate.machine import PACKAGES, differences, is_switch
from pipeconform.certificate.package import Doubt
from pipeconform.execute.engine import Component
from pipeconform.plural import plural
from pipeconform.spec import CertificationLevel

__all__ = ["identity_doubts"]

_DIGEST, _RUN_ID = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")


def identity_doubts(level: CertificationLevel, contents: Contents) -> Iterator[Doubt]:
    """Doubts where the certificate, the environment and the other files contradict each other."""
    yield from _repeated(level, contents)
    yield from _shape(contents)
    yield from _claims(contents)
    yield from _engine(contents)
    yield from _machines(contents)
    yield from _files(contents)


def _repeated(level: CertificationLevel, contents: Contents) -> Iterator[Doubt]:
    """Doubts about fields of the certificate that repeat those of other files."""
    certificate, result = contents.certificate, contents.result
    one = result.implementation
    for field, said, shown in (
        ("implementation", certificate.implementation, one.name),
        ("version", certificate.version, one.version),
        ("reference", certificate.reference, one.reference),
        ("source_digest", certificate.source_digest, one.source_digest),
        ("built_on", certificate.built_on, one.built_on),
        ("product_version", certificate.product_version, result.product_version),
        ("standard_version", certificate.standard_version, result.standard_version),
        ("seed", certificate.seed, result.run.seed),
        ("draws", certificate.draws, result.run.corpus),
        ("run_ids", certificate.run_ids, result.run.ids),
        ("weakening", certificate.weakening, weakening(result)),
    ):
        if said != shown:
            yield _doubt(field, f"{said!r}, but {RESULT} says {shown!r}")
    if certificate.level != level.name:
        yield _doubt("level", f"{certificate.level!r}, but the level's name is {level.name!r}")
    if certificate.claims_digest != digest_of(claims_of_result(result)):
        yield _doubt("claims_digest", f"does not match the claims in {RESULT}")
    machines = tuple(digest_of(machine) for machine in contents.environment)
    if certificate.environment_digests != machines:
        yield _doubt("environment_digests", f"do not match the machines in {ENVIRONMENT}")


def _shape(contents: Contents) -> Iterator[Doubt]:
    """Doubts about formats, times, shards and ids."""
    certificate, result = contents.certificate, contents.result
    if certificate.format != CERTIFICATE_FORMAT:
        yield _doubt(
            "format", f"{certificate.format}; this version of pipeconform checks {CERTIFICATE_FORMAT}"
        )
    if not is_time(certificate.created) or certificate.created < result.created:
        yield _doubt("created", f"{certificate.created!r}, but the result was created {result.created!r}")
    found = _SHARD.fullmatch(certificate.shard)
    if certificate.shard and not (found and int(found[1]) <= int(found[2])):
        yield _doubt("shard", f"{certificate.shard!r} is not a shard such as 1/3")
    if certificate.shards < 1 or (certificate.shard and certificate.shards != 1):
        yield _doubt("shards", f"{certificate.shards}: 1 for a shard, 1 or more for a whole package")
    ids = certificate.run_ids
    if len(ids) != max(1, certificate.shards) or len(set(ids)) < len(ids):
        yield _doubt(
            "run_ids", f"{len(set(ids))} different ids, but there were {max(1, certificate.shards)} runs"
        )
    if not all(_RUN_ID.fullmatch(one) for one in ids):
        yield _doubt("run_ids", "an id is 32 hexadecimal digits")
    for field in ("implementation", "version", "reference", "product_version"):
        if not getattr(certificate, field).strip():
            yield _doubt(field, "blank")


def _claims(contents: Contents) -> Iterator[Doubt]:
    """Doubts about the form of claims and promises."""
    one = contents.result.implementation
    parts: list[tuple[str, object, type[object]]] = [("capabilities", one.capabilities, CLAIMS[one.kind])]
    if one.kind == "pipeline":
        parts.append(("errors", one.errors, ErrorContract))
    elif one.errors is not None:
        yield Doubt(file=RESULT, field="implementation.errors", text="a wrapper has no error contract")
    for field, said, kind in parts:
        if not is_canonical(said, kind):
            text = "not in the form in which this version writes an adapter's claims"
            yield Doubt(file=RESULT, field=f"implementation.{field}", text=text)


def _engine(contents: Contents) -> Iterator[Doubt]:
    engine = contents.certificate.engine
    names = [one.name for one in engine]
    if names != sorted(set(names)) or not all(names):
        yield _doubt("engine", "names are blank, repeated or not in order")
    for one in engine:
        if not _DIGEST.fullmatch(one.digest) or one.files < 1:
            yield _doubt("engine", f"{one.name}: {one.files} files cannot have the digest {one.digest!r}")
        if bool(one.version) != (one.kind == "distribution"):
            yield _doubt("engine", f"{one.name}: impossible: a {one.kind} of version {one.version!r}")
    versions = [one.version for one in engine if one.name == "torch"]
    if versions != [contents.result.environment.torch]:
        text = f"torch {', '.join(versions) or 'is missing'}, but {RESULT} ran {contents.result.environment.torch}"
        yield _doubt("engine", text)


def _machines(contents: Contents) -> Iterator[Doubt]:
    certificate, machines = contents.certificate, contents.environment
    if contents.result.environment not in [machine.environment for machine in machines[:1]]:
        yield Doubt(file=ENVIRONMENT, field="environment", text=f"differs from the environment in {RESULT}")
    if len(machines) != max(1, certificate.shards):
        text = f"{plural(len(machines), 'machine')}, but {CERTIFICATE} says {plural(certificate.shards, 'shard')}"
        yield Doubt(file=ENVIRONMENT, text=text)
    differ = any(differences(machines[0], machine) for machine in machines[1:])
    if differ and not certificate.mixed_environments:
        yield Doubt(file=ENVIRONMENT, text="the shards ran in different environments")
    if certificate.mixed_environments and not differ:
        yield _doubt("mixed_environments", f"true, but the machines in {ENVIRONMENT} do not differ")
    for machine, run_id in zip(machines, certificate.run_ids, strict=False):
        yield from _machine(machine, certificate.engine, run_id)


def _machine(machine: MachineEnvironment, engine: tuple[Component, ...], run_id: str) -> Iterator[Doubt]:
    here = machine.environment
    if machine.engine != engine:
        text = f"the files behind the adapter differ from those in {CERTIFICATE}"
        yield Doubt(file=ENVIRONMENT, field="engine", text=text)
    if machine.run_id != run_id:
        text = f"{machine.run_id!r}, but the run of this package is {run_id!r}: from another package"
        yield Doubt(file=ENVIRONMENT, field="run_id", text=text)
    if machine.packages.get("torch") != here.torch or set(machine.packages) != set(PACKAGES):
        text = f"not versions of {', '.join(PACKAGES)}, or another torch than {here.torch}"
        yield Doubt(file=ENVIRONMENT, field="packages", text=text)
    if machine.memory < 0 or here.cpus < 1:
        text = f"impossible: {machine.memory} bytes of memory, {here.cpus} processors"
        yield Doubt(file=ENVIRONMENT, field="memory", text=text)
    unknown = [name for name in machine.switches if not is_switch(name)]
    if unknown:
        text = f"{unknown[0]!r} is not a variable that a package records"
        yield Doubt(file=ENVIRONMENT, field="switches", text=text)
    blank = [
        name for name in ("python", "torch", "os", "machine", "device", "backend") if not getattr(here, name)
    ]
    if blank or not all(machine.packages.values()):
        yield Doubt(file=ENVIRONMENT, field=".".join(blank[:1]) or "packages", text="blank")
    if set(here.variables) != {"default"}:
        text = "a certification judges under default settings, and records those"
        yield Doubt(file=ENVIRONMENT, field="environment.variables", text=text)


def _files(contents: Contents) -> Iterator[Doubt]:
    """Doubts about the adapter's source and the logs: missing, changed or unexpected files."""
    certificate, one = contents.certificate, contents.result.implementation
    name = adapter_name(one.source)
    text = contents.others.get(name)
    if not one.source or not one.source_digest:
        yield Doubt(
            file=RESULT,
            field="implementation.source_digest",
            text="blank, but a certificate contains the digest of the adapter's file",
        )
    elif text is None:
        yield Doubt(file=name, text="the adapter's source is missing")
    elif hashlib.sha256(text).hexdigest() != certificate.source_digest:
        yield Doubt(file=name, text=f"not the source named in {CERTIFICATE} (source_digest)")
    logs = {f"shard-{n}/{log}" for n in range(1, min(certificate.shards, 9999) + 1) for log in LOGS}
    logs = logs if certificate.shards > 1 or logs & contents.others.keys() else set(LOGS)
    for log in sorted(logs - contents.others.keys()):
        yield Doubt(file=log, text="missing")
    for other in sorted(contents.others.keys() - logs - {name}):
        yield Doubt(file=other, text="not a file of a certification package")


def is_canonical(said: object, kind: type[object]) -> bool:
    """Whether `said` is exactly what writing a `kind` gives: all fields, no others, in the same order."""
    found = convertible(said, kind)
    return found is not None and msgspec.json.encode(said) == msgspec.json.encode(
        msgspec.to_builtins(found, order="deterministic")
    )


def _doubt(field: str, text: str) -> Doubt:
    return Doubt(file=CERTIFICATE, field=field, text=text)
