"""What options make of a campaign; the processes that it would start are told what to be, and none is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeconform.adapter import Description
from pipeconform.attach.pools import AttachedPools
from pipeconform.attach.session import Attach
from pipeconform.campaign import setup
from pipeconform.campaign.options import Options
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.setup import campaign_of, places_of, say
from pipeconform.errors import BadAdapterError, HarnessError, UsageError
from pipeconform.execute.source import Source
from pipeconform.gate.expectations import ExpectationsFile
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.verdict import Raised, VerdictVector
from tests.campaign.answering import Answering
from tests.case.examples import EVERYTHING

FOUND = Description(name="it", version="1", capabilities=EVERYTHING, variants={"strict": {"STRICT": "1"}})
ATTACH = Attach(host="", port=0)


class Started(Answering):
    """The processes of one variant."""

    def __init__(self, environment: Environment | None, **how: object) -> None:
        super().__init__()
        self.environment, self.how, self.open = environment, how, True


class Attached(AttachedPools):
    """Processes of agents."""

    oracle = Answering().oracle

    def __init__(self) -> None:
        self.idle_limit = 0.0


@pytest.fixture
def world(monkeypatch) -> SimpleNamespace:
    """What a campaign would start: which implementation is found there, and what was started."""
    made = SimpleNamespace(started=[], descriptions={"default": FOUND, "strict": FOUND}, compared=[], most=4)

    @contextmanager
    def pools_here(environment, devices, **how) -> Iterator[Started]:
        pools = Started(environment, **how)
        made.started.append(pools)
        yield pools
        pools.open = False

    @contextmanager
    def controller_of(attach, *, devices, largest, say):
        made.agents = SimpleNamespace(
            attach=attach, device=devices.device_type, largest=largest, variables=[]
        )

        @contextmanager
        def pools(environment, *, preload):
            made.agents.variables.append(environment.name)
            yield Attached()

        yield SimpleNamespace(quorum=SimpleNamespace(reason_against=reason_against), pools=pools)
        made.agents.released = True

    def reason_against(ranks: int) -> str | None:
        return None if ranks <= made.most else f"{ranks} ranks need more agents"

    def describe(pools, reference):
        environment = getattr(pools, "environment", None)
        return made.descriptions["default" if environment is None else environment.name]

    monkeypatch.setattr(setup, "pools_here", pools_here)
    monkeypatch.setattr(setup, "controller_of", controller_of)
    monkeypatch.setattr(setup, "describe", describe)
    monkeypatch.setattr(
        setup, "require_same_source", lambda pools, reference, source: made.compared.append(source)
    )
    return made


def options(**given: object) -> Options:
    return Options(**{"implementation": "reference", "profile": "smoke", **given})


def test_a_campaign_has_the_description_and_the_source_that_its_processes_give_and_ends_them(world):
    with campaign_of(options(seed=3, time_limit=9.0)) as campaign:
        assert (campaign.target.name, campaign.target.claims, campaign.target.seed) == ("it", EVERYTHING, 3)
        assert (campaign.implementation, campaign.device) == ("reference", "cpu")
        assert (campaign.source.name, b"class" in campaign.source.text) == ("adapter.py", True)
        executor = campaign.runners["default"].executor
        assert (executor.pools, executor.time_limit) == (world.started[0], 9.0)
        assert world.started[0].open
    assert not world.started[0].open
    assert world.compared == []


def test_what_is_not_asked_for_is_left_out(world):
    with campaign_of(options()) as campaign:
        assert (campaign.expectations, campaign.kept, campaign.earlier.by_cell) == ((), None, {})
        assert campaign.runners["default"].executor.coverage == ""
    assert world.started[0].how == {"preload": PRELOAD, "shows_output": False, "debugger": ""}


def test_what_is_asked_for_is_used(world, tmp_path):
    entries = (SimpleNamespace(name="an expectation"),)
    expected = ExpectationsFile(name="expected.toml", digest="", entries=entries)
    asked = options(
        expectations=expected,
        keep_cases=tmp_path / "kept",
        earlier=tmp_path / "result.json",
        coverage=tmp_path / "coverage",
        show_output=True,
        debugger="1 tty",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "earlier_in", lambda path, *, implementation: (path.name, implementation))
        with campaign_of(asked) as campaign:
            assert campaign.expectations == entries
            assert campaign.kept is not None
            assert campaign.earlier == ("result.json", "it")
            assert campaign.runners["default"].executor.coverage == str(tmp_path / "coverage")
    assert world.started[0].how == {
        "preload": (*PRELOAD, "coverage"),
        "shows_output": True,
        "debugger": "1 tty",
    }


def test_a_variant_has_processes_with_its_variables_and_what_it_promises_there(world):
    world.descriptions["strict"] = dataclasses.replace(FOUND, version="strict 1")
    with campaign_of(options()) as campaign:
        assert len(world.started) == 1
        assert campaign.runners["strict"].title == "it strict 1"
        assert world.started[1].environment == Environment("strict", {"STRICT": "1"})
        assert world.started[1].open
    assert not world.started[1].open


def test_a_variant_with_other_claims_is_refused(world):
    other = dataclasses.replace(EVERYTHING, features=frozenset())
    world.descriptions["strict"] = dataclasses.replace(FOUND, capabilities=other)
    with (
        campaign_of(options()) as campaign,
        pytest.raises(BadAdapterError, match="claims other capabilities in its variant 'strict'"),
    ):
        campaign.runners["strict"]


def test_a_source_that_cannot_be_read_ends_the_run(world, monkeypatch):
    failed = VerdictVector((Raised("OSError", "gone"),))
    monkeypatch.setattr(setup, "ask_implementation", lambda *_, **__: failed)

    with (
        pytest.raises(HarnessError, match=r"reading the adapter's source failed:\nrank 0  raised    OSError"),
        campaign_of(options()),
    ):
        pass


# ---------------------------------------------------------------------------------- where ranks run


def test_ranks_of_agents_are_asked_for_in_the_largest_world_and_their_sources_compared(world):
    with campaign_of(options(attach=ATTACH, ranks=(2, 3), device="cuda")) as campaign:
        assert campaign.device == "cuda"
        assert (world.agents.attach, world.agents.device, world.agents.largest) == (ATTACH, "cuda", 3)
        assert [one.name for one in world.compared] == ["adapter.py"]
        assert isinstance(world.compared[0], Source)
    assert world.agents.released
    assert world.agents.variables == ["default"]
    assert world.started == []


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"show_output": True}, "--show-output shows what ranks of this machine print"),
        ({"coverage": Path("folder")}, "--coverage needs ranks of this machine"),
    ],
)
def test_what_needs_ranks_of_this_machine_does_not_go_with_agents(world, asked, complaint):
    with ExitStack() as stack:
        places_of(options(**asked), stack)
        with pytest.raises(UsageError, match=complaint):
            places_of(options(attach=ATTACH, **asked), stack)


@pytest.mark.parametrize(
    ("available", "ranks", "largest"), [(4, (1, 4), 4), (3, (1, 8), 3), (2, (2, 4), 2), (9, (2, 2), 2)]
)
def test_worlds_are_as_large_as_asked_for_or_as_there_are_places(world, available, ranks, largest):
    world.most = available
    with campaign_of(options(attach=ATTACH, ranks=ranks)) as campaign:
        limits = campaign.target.limits
        assert (limits.min_ranks, limits.max_ranks) == (ranks[0], largest)


def test_without_places_for_the_smallest_world_there_is_no_run(world):
    world.most = 1
    with (
        pytest.raises(UsageError, match="2 ranks need more agents"),
        campaign_of(options(attach=ATTACH, ranks=(2, 4))),
    ):
        pytest.fail("a campaign without ranks")


def test_reports_on_agents_stand_apart_from_the_output_and_cannot_break_a_terminal(capsys):
    say("agent \x1b[31m came")

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("pipeconform: agent ")
    assert "\x1b" not in told.err
