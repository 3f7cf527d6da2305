"""No manipulation of a package that changes its meaning is accepted, and none ends as a mistake of ours."""

import json
from pathlib import Path

import msgspec
import pytest

from pipeconform.certificate.checks import check_files
from pipeconform.certificate.contents import (
    CERTIFICATE,
    ENVIRONMENT,
    MachineEnvironment,
    digest_of,
    encoded,
)
from pipeconform.certificate.package import Package, write_package
from pipeconform.certificate.packing import packed
from tests.certificate.conftest import sound, violated
from tests.certificate.manipulations import fields_changed, files_changed, files_exchanged, sealed

HARMLESS = {
    "result.json: run.seconds": "a duration",
    "result.json: cells[].seconds": "a duration",
    "canaries.json: [].seconds": "a duration",
    "result.json: cells[].worst_ratio": "a measurement within its range, by which nothing is decided",
    "result.json: cells[].compared": "how much more than nothing was compared",
    "canaries.json: [].shown[]": "the words behind the status by which a fault was noticed",
    "canaries.json": "the order of the faults",
    "judged.json": "the order of the cells; another package of the same claims has the very same file",
    "logs": "texts for people, from which nothing is derived",
}
"""Where a change may be accepted, and why it does not change what the package means."""

HARMLESS_OF_A_VIOLATION = {
    "message": "words about a case that is there",
    "where": "words about a case that is there",
    "verdicts": "words about a case that is there, of every rank",
    "minimal": "whether it could be smaller",
    "shrink_executions": "how often it was executed to make it small",
    "occurrences": "how many of the judged cases show it, within their number",
    "case": "another case that the requirement is about; the violation is shown by it, or it is not",
    "first_wrong": "a place in the timeline",
    "timeline": "what ran, in words",
    "places": "where ranks were stuck, in words",
    "localisation": "where values begin to be wrong",
    "reruns": "how often it was executed again, in agreement with what that showed",
    "found_by": "the id of the violation whose control showed it",
    "large": "what the largest case shows, for expectations made of the result",
}
"""Of a package that is not granted: nothing is granted by changing one of these either."""

UNKNOWABLE = {
    "processor": "what a machine says of itself",
    "memory": "what a machine says of itself",
    "drivers": "what a machine says of itself",
    "torch_build": "what a machine says of itself",
    "switches": "what a machine says of itself",
    "packages": "versions, but for torch's",
}
"""Of ``environment.json``, when the certificate's digest of it is made right: only a signature vouches for them."""

SHARE = 6
"""One of so many manipulations is tried in the fast part of the tests, another one of each field in turn."""


def check(one):
    return check_files(Package(path=Path("x.zip"), files=one.files, manifest=b"", blake2b=b""))


def every(make, contents):
    files = packed(contents)
    yield from fields_changed(files)
    yield from files_changed(files)
    yield from files_exchanged(files, packed(sound(make, run="b")))


def accepted(manipulations, *, granted):
    """Those that raise no doubt; of a package that is not granted, those that are granted then, above all."""
    found = []
    for one in manipulations:
        checked = check(one)
        if not checked.doubts:
            found.append(one)
        assert granted or not checked.granted, str(one)
    return found


def test_there_are_many_and_each_changes_something(make, contents):
    files, found = packed(contents), list(every(make, contents))

    assert len(found) > 2000
    assert len({one.field for one in found}) > 200
    assert all(one.files != files for one in found[::SHARE] if one.how != "of another package")


def test_some_of_all_manipulations_are_refused(make, contents):
    chosen = list(every(make, contents))[::SHARE]

    assert len(chosen) > 200
    assert [str(one) for one in accepted(chosen, granted=True) if one.field not in HARMLESS] == []


@pytest.mark.slow
def test_all_manipulations_are_refused(make, contents):
    found = accepted(every(make, contents), granted=True)

    assert [str(one) for one in found if one.field not in HARMLESS] == []
    assert {one.field for one in found} == set(HARMLESS)


COUNTED_WITH_A_VIOLATION = {
    "totals.distinct_cases",
    "totals.distinct_cases_several_ranks",
    "totals.pairs",
    "totals.together",
}
"""Cases that were executed to make a violation small count there, and are on no list."""


def of_a_violation(field):
    if any(field.startswith(f"result.json: {name}") for name in COUNTED_WITH_A_VIOLATION):
        return True
    return any(
        field.startswith(f"result.json: cells[].violations[].{name}") for name in HARMLESS_OF_A_VIOLATION
    )


@pytest.mark.slow
def test_all_manipulations_of_a_package_that_is_not_granted_are_refused(make, contents):
    found = accepted(every(make, violated(make, contents)), granted=False)

    assert [str(one) for one in found if one.field not in HARMLESS and not of_a_violation(one.field)] == []


def seal(files):
    """The certificate's digests of the machines, made right."""
    certificate = json.loads(files[CERTIFICATE])
    machines = msgspec.json.decode(files[ENVIRONMENT], type=tuple[MachineEnvironment, ...])
    certificate["environment_digests"] = [digest_of(machine) for machine in machines]
    return {**files, CERTIFICATE: encoded(certificate)}


def readable(one):
    try:
        msgspec.json.decode(one.files[ENVIRONMENT], type=tuple[MachineEnvironment, ...])
    except msgspec.DecodeError:
        return False
    return True


def test_what_a_machine_says_of_itself_is_all_that_can_be_forged_of_it(contents):
    """With the certificate's own digest made right, so that nothing but the values themselves could tell."""
    manipulations = filter(readable, fields_changed(packed(contents), (ENVIRONMENT,)))
    found = accepted((sealed(one, seal) for one in manipulations), granted=True)

    fields = {
        one.field.removeprefix("environment.json: [].").partition(".")[0].partition("[")[0] for one in found
    }
    assert fields == set(UNKNOWABLE)


REPORTED = {
    "a canary less": lambda c: {"canaries.json": c["canaries.json"][1:]},
    "a fault made up": lambda c: {
        "canaries.json": [*c["canaries.json"], c["canaries.json"][0] | {"fault": "made-up", "shown": []}]
    },
    "format 99": lambda c: {"result.json": c["result.json"] | {"format": 99}},
    "certificate's format 99": lambda c: {"certificate.json": c["certificate.json"] | {"format": 99}},
    "a blank source digest": lambda c: {
        "certificate.json": c["certificate.json"] | {"source_digest": ""},
        "result.json": c["result.json"]
        | {"implementation": c["result.json"]["implementation"] | {"source_digest": ""}},
    },
    "no source at all": lambda c: {
        "certificate.json": c["certificate.json"] | {"source_digest": ""},
        "result.json": c["result.json"]
        | {"implementation": c["result.json"]["implementation"] | {"source_digest": "", "source": ""}},
        "adapter/mine.py": None,
    },
    "fewer ranks at most": lambda c: {
        "result.json": c["result.json"] | {"run": c["result.json"]["run"] | {"max_ranks": 3}}
    },
    "worst ratio 5": lambda c: {
        "result.json": c["result.json"]
        | {"cells": [c["result.json"]["cells"][0] | {"worst_ratio": 5}, *c["result.json"]["cells"][1:]]}
    },
    "negative counts": lambda c: {
        "result.json": c["result.json"]
        | {"cells": [c["result.json"]["cells"][0] | {"executions": -3}, *c["result.json"]["cells"][1:]]}
    },
}
"""What was accepted once."""


@pytest.mark.parametrize("name", REPORTED)
def test_what_was_accepted_once_is_refused(typed, contents, tmp_path, name):
    """As a whole: the package with its manifest made right, on the command line."""
    files = packed(contents)
    data = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    for file, value in REPORTED[name](data).items():
        if value is None:
            del files[file]
        else:
            files[file] = encoded(value)
    write_package(files, tmp_path / "forged.zip")
    code, out, err = typed("verify", "forged.zip")

    assert (code, err) == (1, "")
    assert out.splitlines()[-1].startswith("NOT VERIFIED")
