"""The contents of a package: the certificate, the environment, the canaries, and which cases were judged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from pipeconform.campaign.kept import JudgedCases
from pipeconform.case.any_case import case_of
from pipeconform.certificate.package import Doubt, Package
from pipeconform.errors import BadPackageError
from pipeconform.execute.engine import Component
from pipeconform.reading import Line, decoded_json
from pipeconform.report.result import Environment, Result

__all__ = [
    "BADGE",
    "CANARIES",
    "CERTIFICATE",
    "CERTIFICATE_FORMAT",
    "ENVIRONMENT",
    "JUDGED",
    "LOGS",
    "PAGE",
    "RESULT",
    "Canary",
    "Certificate",
    "Contents",
    "MachineEnvironment",
    "adapter_name",
    "case_name",
    "claims_of_result",
    "contents_of",
    "data_files",
    "digest_of",
    "encoded",
]

CERTIFICATE, RESULT, ENVIRONMENT = "certificate.json", "result.json", "environment.json"
CANARIES, JUDGED = "canaries.json", "judged.json"
PAGE, BADGE = "certificate.html", "badge.svg"
"""What people see of a certificate; both are made from the other files."""
CERTIFICATE_FORMAT = 3
"""Format 2 added the ids of runs, the digests of claims and environments, and the engine's files; 3 page and badge."""
LOGS = ("logs/summary.txt", "logs/junit.xml")

T = TypeVar("T")


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strict and immutable."""


class Certificate(_Data, frozen=True, kw_only=True):
    """The request and the decision; all of it can be derived from the other files."""

    format: int = CERTIFICATE_FORMAT
    level: Line
    standard_version: Line
    product_version: Line
    created: Line
    implementation: Line
    version: Line
    reference: Line
    source_digest: Line
    built_on: Line = ""
    """What the implementation is built on, if that is an implementation, too."""
    seed: int
    draws: int
    shard: Line = ""
    """Such as ``1/3``; no decision is made about a single shard."""
    shards: int = 1
    """How many shards the package was merged from."""
    mixed_environments: bool = False
    """Whether the shards were allowed to run in different environments."""
    granted: bool
    reasons: tuple[Line, ...]
    """Why the level was not granted."""
    weakening: tuple[str, ...] = ()
    """Claims of the implementation that let the suite see less of it."""
    engine: tuple[Component, ...]
    """The files behind the adapter."""
    claims_digest: str
    """The `digest_of` what the implementation claims and promises."""
    run_ids: tuple[str, ...]
    """The id of the run, or of each shard's run; every other file made in the run contains it."""
    environment_digests: tuple[str, ...]
    """The `digest_of` each machine's entry in ``environment.json``, in the same order."""

    @property
    def quoted(self) -> str:
        """The implementation's name and version in quotes, since a name may be like a verdict."""
        return repr(f"{self.implementation} {self.version}")


class MachineEnvironment(_Data, frozen=True, kw_only=True):
    """The environment in which a package, or one shard of it, was made."""

    environment: Environment
    processor: str
    memory: int
    """Bytes."""
    drivers: tuple[str, ...]
    torch_build: str
    packages: dict[str, str]
    switches: dict[str, str]
    """Environment variables that change the behaviour of torch, its backends or Python."""
    run_id: str = ""
    """The run that took place there."""
    engine: tuple[Component, ...] = ()
    """The files behind the adapter on that machine."""


class Canary(_Data, frozen=True, kw_only=True):
    """One implementation that is wrong on purpose, and whether it was detected in this environment."""

    fault: Line
    requirement: Line
    schedule: Line
    expected: Line
    detected: bool
    shown: tuple[Line, ...]
    """What was seen, as ``status: signature``."""
    seconds: float
    shard: str = ""
    run_id: str = ""
    """The run with which it was tried."""


class Contents(_Data, frozen=True, kw_only=True):
    """A package's files, decoded."""

    certificate: Certificate
    result: Result
    environment: tuple[MachineEnvironment, ...]
    canaries: tuple[Canary, ...]
    judged: tuple[JudgedCases, ...]
    cases: dict[str, bytes]
    """The cases as JSON, by digest."""
    others: dict[str, bytes]
    """Logs and the adapter's source, by name."""


def case_name(digest: str) -> str:
    """The name of a case's file in a package."""
    return f"cases/{digest}.json"


def adapter_name(source: str) -> str:
    """The name of the adapter's source in a package, with only portable characters."""
    return f"adapter/{re.sub(r'[^A-Za-z0-9_-]+(?!py$)', '_', source)}"


def digest_of(value: object) -> str:
    """The SHA-256 of a value's JSON with sorted keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def claims_of_result(result: Result) -> object:
    """What an implementation claims and promises."""
    return result.implementation.capabilities, result.implementation.errors


def encoded(value: object) -> bytes:
    """A value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def data_files(contents: Contents) -> dict[str, bytes]:
    """The files of a package by name, without its page and its badge."""
    return {
        CERTIFICATE: encoded(contents.certificate),
        RESULT: encoded(contents.result),
        ENVIRONMENT: encoded(contents.environment),
        CANARIES: encoded(contents.canaries),
        JUDGED: encoded(contents.judged),
        **{case_name(digest): data for digest, data in contents.cases.items()},
        **contents.others,
    }


def contents_of(package: Package) -> tuple[Contents | None, tuple[Doubt, ...]]:
    """Decode a package; if a file cannot be decoded, return doubts and no contents."""
    doubts: list[Doubt] = []
    certificate = _decoded(package.files, CERTIFICATE, Certificate, doubts)
    result = _decoded(package.files, RESULT, Result, doubts)
    environment = _decoded(package.files, ENVIRONMENT, tuple[MachineEnvironment, ...], doubts)
    canaries = _decoded(package.files, CANARIES, tuple[Canary, ...], doubts)
    judged = _decoded(package.files, JUDGED, tuple[JudgedCases, ...], doubts)
    if certificate is None or result is None or environment is None or canaries is None or judged is None:
        return None, tuple(doubts)
    named = {CERTIFICATE, RESULT, ENVIRONMENT, CANARIES, JUDGED, PAGE, BADGE}
    cases = {
        name.removeprefix("cases/").removesuffix(".json"): data
        for name, data in package.files.items()
        if name.startswith("cases/")
    }
    others = {
        name: data
        for name, data in package.files.items()
        if name not in named and not name.startswith("cases/")
    }
    return Contents(
        certificate=certificate,
        result=result,
        environment=environment,
        canaries=canaries,
        judged=judged,
        cases=cases,
        others=others,
    ), tuple(doubts)


def _decoded(files: Mapping[str, bytes], name: str, kind: type[T], doubts: list[Doubt]) -> T | None:
    data = files.get(name)
    if data is None:
        doubts.append(Doubt(file=name, text="missing: no certification package is complete without it"))
        return None
    try:
        return decoded_json(
            data, kind, source=name, what="as the format demands", error=BadPackageError, dec_hook=case_of
        )
    except BadPackageError as error:
        text, _, field = str(error).removeprefix(f"{name}: ").partition(" - at ")
        doubts.append(Doubt(file=name, field=field.strip("`"), text=text))
        return None
