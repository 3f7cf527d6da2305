"""Shards are merged only if they are all of one certification, and what is merged verifies like a whole."""

import msgspec
import pytest

from pipeconform.adapter import Capabilities, ScheduleClaim
from pipeconform.campaign.targets import target_claiming
from pipeconform.certificate.checks import check_contents, check_package
from pipeconform.certificate.contents import digest_of
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.certificate.parts import parse_shard, part_of
from pipeconform.certificate.shards import merge
from pipeconform.errors import BadPackageError, UsageError
from pipeconform.spec import profile
from pipeconform.wrapper import WrapperClaims
from tests.facts import tells


@pytest.fixture
def files(shard, tmp_path):
    """Both shards as packages, each changed by a function."""

    def write(change=lambda contents, number: contents):
        paths = []
        for number in (1, 2):
            path = tmp_path / f"{number}.zip"
            write_package(packed(change(shard(number), number)), path)
            paths.append(path)
        return paths

    return write


def second(change):
    return lambda contents, number: change(contents) if number == 2 else contents


def in_certificate(contents, **fields):
    return msgspec.structs.replace(
        contents, certificate=msgspec.structs.replace(contents.certificate, **fields)
    )


def test_all_shards_together_make_the_whole(files, contents, tmp_path):
    merged = merge(files())

    by_key = {(cell.requirement, cell.schedule): cell for cell in contents.result.cells}
    assert {(cell.requirement, cell.schedule): cell for cell in merged.result.cells} == by_key
    assert (merged.certificate.granted, merged.certificate.shards) == (True, 2)
    write_package(packed(merged), tmp_path / "merged.zip")
    assert check_package(tmp_path / "merged.zip").granted


def test_the_order_of_the_files_does_not_matter(files):
    one, two = files()

    assert merge([two, one]) == merge([one, two])


def test_a_shard_alone_deserves_nothing(shard):
    checked = check_contents(shard(1))

    assert (checked.granted, checked.doubts) == (False, ())
    (reason,) = checked.reasons
    assert tells(reason, "shard 1/2", "decides nothing", "merge all")


def test_a_missing_shard_is_named(files):
    with pytest.raises(BadPackageError, match="shards are missing: 2/2"):
        merge(files()[:1])


def test_a_shard_that_is_there_twice_is_named(files):
    one, two = files()

    with pytest.raises(BadPackageError, match=r"1.zip: shard 1/2 is given twice"):
        merge([one, two, one])


def test_a_whole_package_is_no_shard(contents, tmp_path):
    write_package(packed(contents), tmp_path / "whole.zip")

    with pytest.raises(BadPackageError, match=r"certificate.json: shard: this package is whole"):
        merge([tmp_path / "whole.zip"])


def test_a_shard_in_doubt_is_not_merged(files):
    broken = second(lambda c: msgspec.structs.replace(c, canaries=()))

    with pytest.raises(BadPackageError, match=r"2.zip: canaries.json: fault: .* was not tried \(shard 2/2\)"):
        merge(files(broken))


def test_shards_of_two_implementations_are_refused_by_field(files):
    def other(contents):
        implementation = msgspec.structs.replace(contents.result.implementation, version="2.0")
        result = msgspec.structs.replace(contents.result, implementation=implementation)
        return in_certificate(msgspec.structs.replace(contents, result=result), version="2.0")

    with pytest.raises(BadPackageError, match=r"certificate.json: version: '2.0', but .* says '1.0'"):
        merge(files(second(other)))


def test_shards_of_two_environments_are_refused_unless_told(files, tmp_path):
    def elsewhere(contents):
        machine = msgspec.structs.replace(contents.environment[0], memory=1 << 20)
        there = msgspec.structs.replace(contents, environment=(machine,))
        return in_certificate(there, environment_digests=(digest_of(machine),))

    paths = files(second(elsewhere))
    with pytest.raises(BadPackageError, match=r"environment.json: memory: not as in .*1.zip"):
        merge(paths)
    merged = merge(paths, allow_different_environments=True)

    assert merged.certificate.mixed_environments
    assert check_contents(merged).granted
    hidden = in_certificate(merged, mixed_environments=False)
    assert "the shards ran in different environments" in str(check_contents(hidden).doubts[0])


def test_cells_of_another_package_do_not_add_up(contents, shard):
    """Merged by hand: what a shard lacks is taken from another package, and the manifest written anew."""
    forged = msgspec.structs.replace(
        shard(1),
        certificate=contents.certificate,
        result=msgspec.structs.replace(shard(1).result, cells=contents.result.cells),
    )
    found = [str(doubt) for doubt in check_contents(forged).doubts]

    assert any("totals.judgements" in text for text in found)
    assert "judged.json: FWD-1 under 1F1B is missing" in found
    assert any(text.startswith("environment.json: run_id: ") for text in found)


def test_schedules_are_dealt_in_turn_and_each_once():
    claims = Capabilities(schedules=tuple(ScheduleClaim(name=name) for name in "abcde"))
    target = target_claiming(claims, name="mine", profile=profile("certify"), ranks=(1, 4), seed=0)
    parts = [part_of(target, ("FWD-1", "TRN-1"), number=n, total=2) for n in (1, 2)]

    assert parts == [(("FWD-1", "TRN-1"), ("a", "c", "e")), (("FWD-1", "TRN-1"), ("b", "d"))]
    with pytest.raises(UsageError, match="only 5 schedules are claimed"):
        part_of(target, ("FWD-1", "TRN-1"), number=1, total=6)


def test_of_a_wrapper_requirements_are_dealt_since_it_has_no_schedules():
    target = target_claiming(WrapperClaims(), name="mine", profile=profile("certify"), ranks=(1, 3), seed=0)
    rows = ("DPW-1", "DPW-4", "DPW-5")
    parts = [part_of(target, rows, number=n, total=2) for n in (1, 2)]

    assert parts == [(("DPW-1", "DPW-5"), ()), (("DPW-4",), ())]
    with pytest.raises(UsageError, match="only 3 requirements are judged"):
        part_of(target, rows, number=1, total=4)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/2/3"])
def test_a_shard_is_a_number_of_a_number(text):
    with pytest.raises(UsageError, match=r"expected I/N with 1 ≤ I ≤ N"):
        parse_shard(text)
