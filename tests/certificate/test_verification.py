"""What a verification checks, and when it executes cases again. The executions are those of test_rerun."""

from __future__ import annotations

import random

import msgspec
import pytest

from pipeconform.campaign.options import Options
from pipeconform.certificate.checks import list_of
from pipeconform.certificate.package import Doubt, write_package
from pipeconform.certificate.packing import packed
from pipeconform.certificate.rerun import sample
from pipeconform.certificate.verification import verify_package
from pipeconform.errors import UsageError
from tests.certificate.conftest import LEVEL

REFERENCE = Options(implementation="reference")
OTHERWISE = Doubt(file="result.json", field="cells.status", text="passed, now shows failed")


@pytest.fixture
def package(contents, tmp_path):
    path = tmp_path / "mine.pipeconform.zip"
    write_package(packed(contents), path)
    return path


@pytest.fixture
def executed(monkeypatch):
    """The questions that are asked of the implementation, which gives other answers than the package has."""
    asked = []

    def execute(questions, contents, *, options):
        asked.extend(questions)
        return (OTHERWISE,)

    monkeypatch.setattr("pipeconform.certificate.verification.execute_again", execute)
    return asked


def test_nothing_is_executed_unless_it_is_asked_for(package, executed):
    found = verify_package(package)

    assert (found.executed, found.sample_seed, executed) == (0, None, [])
    assert found.checked.granted


@pytest.mark.parametrize("half", [{"rerun": 2}, {"options": REFERENCE}])
def test_a_number_without_an_implementation_and_the_other_way_round_are_refused(package, executed, half):
    """A verdict without an execution would be taken for one with it."""
    with pytest.raises(UsageError, match="give both"):
        verify_package(package, **half)

    assert executed == []


def test_as_many_judgements_as_asked_are_made_again_and_other_answers_are_doubts(package, contents, executed):
    found = verify_package(package, rerun=3, options=REFERENCE, sample_seed=5)

    expected = sample(list_of(LEVEL, contents), contents, 3, rng=random.Random(5))
    assert tuple(executed) == expected
    assert (found.executed, found.sample_seed) == (3, 5)
    assert found.checked.doubts == (OTHERWISE,)
    assert not found.checked.granted


def test_a_seed_of_its_own_is_told_so_that_the_sample_can_be_had_again(package, executed):
    first = verify_package(package, rerun=2, options=REFERENCE)
    asked = list(executed)
    executed.clear()
    again = verify_package(package, rerun=2, options=REFERENCE, sample_seed=first.sample_seed)

    assert first.sample_seed is not None
    assert again.sample_seed == first.sample_seed
    assert executed == asked != []


def test_a_level_that_does_not_exist_leaves_nothing_to_execute(contents, tmp_path, executed):
    certificate = msgspec.structs.replace(contents.certificate, level="gold")
    path = tmp_path / "gold.zip"
    write_package(packed(contents) | {"certificate.json": msgspec.json.encode(certificate)}, path)
    found = verify_package(path, rerun=2, options=REFERENCE)

    assert (found.executed, executed) == (0, [])
    assert any("unknown level 'gold'" in str(doubt) for doubt in found.checked.doubts)


def test_a_missing_signature_is_a_doubt_if_a_key_is_given(package, tmp_path):
    key = tmp_path / "key.pub"
    key.write_text("untrusted comment: x\nRWQ\n")
    found = verify_package(package, public_key=key)

    assert [doubt.file for doubt in found.checked.doubts] == ["mine.pipeconform.zip.minisig"]
    assert verify_package(package).checked.doubts == ()
