"""A blocked cell counts for -x and --lf, unless all that blocks it is expected."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from pipeconform.campaign.options import Options
from pipeconform.commands.init import skeleton
from pipeconform.gate.expectations import ExpectationsFile
from pipeconform.report.result import Control
from pipeconform.session.gathered import Gathered
from tests.command_line import type_in
from tests.gate.test_strict import ENTRY
from tests.report.conftest import make

__all__ = ["make"]

WRONG = ("losses[k] / len(losses) if self._mean else losses[k]", "losses[k]")
"""A mistake that TRN-3 is about, and that blocks TRN-1 and TRN-2."""


@pytest.fixture
def gathered(make):
    def of(*entries):
        file = ExpectationsFile(name="e", digest="", entries=entries) if entries else None
        found = Gathered(Options(implementation="mine", expectations=file), out=None, unrestricted=True)
        found.told.append(SimpleNamespace(environment=make.result().environment))
        return found

    return of


@pytest.fixture
def blocked(make):
    control = Control(digest="d", requirement=ENTRY.requirement, status="failed", signature=ENTRY.signature)
    return make.cell("LIF-1", "GPipe", make.violation("LIF-1", "GPipe", control=control), status="blocked")


def test_what_an_expected_violation_blocks_does_not_count_before_or_after_that_is_judged(
    make, gathered, blocked
):
    found = gathered(ENTRY)
    before = found.is_not_met(blocked)
    known = make.violation("TRN-4", "GPipe", signature=ENTRY.signature, expected=ENTRY.label)
    found.note(make.cell("TRN-4", "GPipe", known))

    assert (before, found.is_not_met(blocked)) == (False, False)


def test_what_another_violation_blocks_counts(gathered, blocked):
    elsewhere = msgspec.structs.replace(ENTRY, signature="gradient missing")

    assert gathered().is_not_met(blocked)
    assert gathered(elsewhere).is_not_met(blocked)


@pytest.fixture
def servers(warm_servers):
    """Runs share fork servers: what starts and ends is not what they are about."""
    with warm_servers.used():
        yield


@pytest.mark.usefixtures("servers")
def test_a_run_stops_at_a_blocked_requirement_and_the_next_one_judges_it_again(tmp_path):
    text = skeleton(name="wrong.py")
    assert WRONG[0] in text
    (tmp_path / "wrong.py").write_text(text.replace(*WRONG), "utf-8")
    run = ("run", "--impl", "wrong.py:MyAdapter", "--profile", "smoke", "--ranks", "1", "--requirements")

    def cells():
        found = json.loads((tmp_path / "pipeconform-results/result.json").read_text())["cells"]
        return [(cell["requirement"], cell["status"]) for cell in found]

    stopped = type_in(tmp_path, (*run, "LIF-1,TRN-1", "-x"))
    first = cells()
    again = type_in(tmp_path, (*run, "FWD-1,LIF-1", "--lf"))

    assert (stopped.returncode, again.returncode) == (1, 1)
    assert first == [("LIF-1", "blocked")]
    assert cells() == [("LIF-1", "blocked")]
