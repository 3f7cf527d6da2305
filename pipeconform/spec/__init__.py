"""The standard as data: requirements as the suites state them, levels, profiles, change log."""

from __future__ import annotations

from pipeconform.spec.catalogue import Chapter, Level, Requirement, chapters, requirement, requirements
from pipeconform.spec.changes import StandardVersion, rule_digest, rule_digests, standard_versions
from pipeconform.spec.levels import (
    CertificationLevel,
    certification_level,
    certification_levels,
    core_requirements,
    mandatory,
    missing,
)
from pipeconform.spec.profiles import Profile, profile, profiles

__all__ = [
    "STANDARD_VERSION",
    "CertificationLevel",
    "Chapter",
    "Level",
    "Profile",
    "Requirement",
    "StandardVersion",
    "certification_level",
    "certification_levels",
    "chapters",
    "core_requirements",
    "mandatory",
    "missing",
    "profile",
    "profiles",
    "requirement",
    "requirements",
    "rule_digest",
    "rule_digests",
    "standard_versions",
]

STANDARD_VERSION = "0.1"
"""The version of the standard, which changes when its rules change and not with releases of pipeconform."""
