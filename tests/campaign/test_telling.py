"""What a process tells of its campaign; no process is started."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from types import SimpleNamespace

import msgspec
import pytest

from pipeconform.campaign.telling import environment_of, implementation_of, tell, weights
from pipeconform.campaign.told import Weight
from pipeconform.campaign.variants import Runners
from pipeconform.execute.source import Source
from pipeconform.ranks.environment import Environment
from tests.campaign.campaigns import CAPABILITIES, campaign
from tests.case.examples import small_case


class Told:
    """A runner of which only the processes are asked."""

    promises = True

    def __init__(self, environment, reported, *, hosts=()):
        formed = SimpleNamespace(wait_until_formed=lambda: [reported, {"of another rank": "1"}])
        devices = SimpleNamespace(device_type="xpu", backend="xccl", names=("Max 1550",))
        self.pools = SimpleNamespace(environment=environment, oracle=formed, devices=devices, hosts=hosts)


@pytest.fixture
def told(monkeypatch):
    """A campaign with two variants, of which one has been started."""
    monkeypatch.setattr(platform, "platform", lambda: "Linux-6")  # asks a process the first time
    made = campaign("smoke")
    default = Told(
        Environment("default", {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": None}),
        {"OMP_NUM_THREADS": "4", "torch.deterministic": "yes", "HOME": "/root"},
        hosts=("node1 (2)",),
    )
    made.runners = Runners(
        default,
        names=("validated", "unused"),
        start=lambda name: Told(Environment(name, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}), {}),
    )
    return made


def test_the_settings_of_every_variant_that_was_used_are_those_that_its_ranks_report(told):
    assert told.runners["validated"] is not None
    found = environment_of(told).variables

    assert list(found) == ["default", "validated"]
    default = told.runners["default"].pools.environment.effective()
    assert found["default"] == {**default, "OMP_NUM_THREADS": "4", "torch.deterministic": "yes"}
    assert found["default"]["NCCL_DEBUG"] is None
    assert found["validated"]["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"


def test_the_machine_is_described(told):
    found = environment_of(told)
    assert (found.python, found.torch) == (platform.python_version(), metadata.version("torch"))
    assert (found.os, found.machine, found.cpus) == (
        platform.platform(),
        platform.machine(),
        os.cpu_count(),
    )
    assert (found.device, found.backend, found.device_names) == ("xpu", "xccl", ("node1 (2)", "Max 1550"))


def test_runners_that_are_not_started_one_by_one_are_all_asked(told):
    told.runners = {"default": told.runners["default"], "validated": told.runners["validated"]}
    assert list(environment_of(told).variables) == ["default", "validated"]


def test_the_implementation_is_described_with_the_digest_of_its_source(told):
    told.implementation, told.source = "mine.py:Mine", Source(name="mine.py", text=b"class Mine: ...\n")
    found = implementation_of(told)

    assert (found.reference, found.name, found.kind) == ("mine.py:Mine", "nobody", told.target.kind)
    assert (found.source, found.source_digest) == (
        "mine.py",
        hashlib.sha256(b"class Mine: ...\n").hexdigest(),
    )
    assert found.capabilities == msgspec.to_builtins(CAPABILITIES, order="deterministic")
    assert found.errors == msgspec.to_builtins(told.target.errors, order="deterministic")


def test_a_source_that_python_cannot_find_has_no_digest(told):
    told.source = Source(text=b"typed")
    assert (implementation_of(told).source, implementation_of(told).source_digest) == ("", "")


def test_the_report_has_what_was_executed_and_reached(told):
    case = small_case()
    told.count(case)
    told.count(case, times=2)
    found = tell(told, ("GPipe", "1F1B"))

    assert found.schedules == told.target.chosen(("GPipe", "1F1B"))
    assert found.executed == {case.digest: 3}
    assert found.num_ranks == {case.digest: case.num_ranks}
    assert set(found.reached) == told.target.points(case)
    assert list(found.reached) == sorted(found.reached)
    assert found.reachable == tuple(sorted(told.target.reachable(found.schedules)))
    assert (found.max_ranks, found.search) == (told.target.max_ranks, told.target.profile.search)
    assert found.environment == environment_of(told)
    assert found.implementation == implementation_of(told)


def test_the_weight_of_a_schedule_counts_its_judged_cells_under_every_variant(told):
    """TRC is judged by profile smoke under the default variant only, ERR under all."""
    found = weights(told)
    alone = {"default": told.runners["default"]}
    told.runners = alone
    plain = weights(told)

    assert found.keys() == plain.keys() == set(told.target.columns)
    assert {name: one.num_ranks for name, one in found.items()} == {
        name: one.num_ranks for name, one in plain.items()
    }
    assert all(found[name].num_cells >= plain[name].num_cells > 0 for name in plain)
    assert sum(one.num_cells for one in found.values()) > sum(one.num_cells for one in plain.values())


def test_the_weight_of_a_schedule_is_that_of_its_largest_cases(told, monkeypatch):
    asked = {"FWD-1": 2, "FWD-2": 4, "FWD-3": 3}
    rows = [SimpleNamespace(id=name) for name in asked]
    monkeypatch.setattr("pipeconform.campaign.telling.requirements_of", lambda kind: rows)
    told.runners = {"default": told.runners["default"]}
    told.target = SimpleNamespace(
        kind="pipeline",
        profile=told.profile,
        columns=("GPipe",),
        ask=lambda row, column, *, promises: SimpleNamespace(num_ranks=asked[row.id]) if promises() else None,
    )
    assert weights(told) == {"GPipe": Weight(num_ranks=4, num_cells=3)}
