"""The standard's change log, and digests that show whether a rule or the implementation has changed."""

from __future__ import annotations

import datetime
import functools
import hashlib
import tomllib
from importlib import resources

import msgspec

from pipeconform.spec.catalogue import Requirement, requirements

__all__ = ["StandardVersion", "rule_digest", "rule_digests", "standard_versions"]


class StandardVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of the standard and what it changed."""

    version: str
    date: datetime.date
    changes: tuple[str, ...]


@functools.cache
def standard_versions() -> tuple[StandardVersion, ...]:
    """Every version of the standard, newest first."""
    text = resources.files("pipeconform.spec").joinpath("changes.toml").read_text("utf-8")
    return tuple(msgspec.convert(row, StandardVersion) for row in tomllib.loads(text)["version"])


def rule_digest(row: Requirement) -> str:
    """A digest, 12 hexadecimal digits, of what is normative about a requirement: equal digests mean equal rules."""
    text = "\0".join((row.id, row.level.value, row.statement, str(row.tolerates_errors)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def rule_digests() -> dict[str, str]:
    """The digest of every requirement about pipelines, by id."""
    return {row.id: rule_digest(row) for row in requirements()}
