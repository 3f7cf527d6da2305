"""The change log knows the current version; a digest changes with the rule and with nothing else."""

import msgspec

from pipeconform.spec import STANDARD_VERSION, requirement, rule_digest, rule_digests, standard_versions
from pipeconform.spec.catalogue import requirements


def test_the_newest_version_is_the_current_one():
    assert standard_versions()[0].version == STANDARD_VERSION
    assert all(version.changes for version in standard_versions())


def test_versions_are_listed_newest_first():
    dates = [version.date for version in standard_versions()]

    assert dates == sorted(dates, reverse=True)


def test_what_is_normative_changes_the_digest():
    row = requirement("FWD-1")
    changed = msgspec.structs.replace(row, statement=row.statement + " Always.")

    assert rule_digest(changed) != rule_digest(row)
    assert rule_digest(msgspec.structs.replace(row, tolerates_errors=True)) != rule_digest(row)


def test_what_explains_a_rule_does_not_change_its_digest():
    row = requirement("FWD-1")

    assert rule_digest(msgspec.structs.replace(row, rationale="Another.", title="Other")) == rule_digest(row)


def test_every_requirement_has_a_digest_of_its_own():
    digests = rule_digests()

    assert list(digests) == [row.id for row in requirements()]
    assert len(set(digests.values())) == len(digests)
