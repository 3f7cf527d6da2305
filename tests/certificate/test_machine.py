"""What a certificate says about a machine: what could change a number, and nothing that names it."""

import platform

import msgspec
import pytest

from pipeconform.certificate.machine import differences, machine_environment


@pytest.fixture
def environment(make):
    return make.result().environment


def test_switches_that_change_numbers_are_kept_without_paths(environment, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NCCL_TOPO_FILE", "/home/somebody/topology.xml")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    found = machine_environment(environment)

    assert found.switches["OMP_NUM_THREADS"] == "3"
    assert found.switches["NCCL_TOPO_FILE"] == "<path>"
    assert "SECRET_TOKEN" not in found.switches


def test_the_build_of_torch_and_the_hardware_are_told_and_the_machine_is_not_named(environment):
    found = machine_environment(environment)

    assert "PyTorch built with" in found.torch_build
    assert found.memory > 0
    assert found.processor
    assert platform.node() not in (found.processor, *found.switches.values())


def test_differences_name_the_fields_on_both_floors(environment):
    one = machine_environment(environment)
    other = msgspec.structs.replace(
        one, memory=1, environment=msgspec.structs.replace(environment, torch="2.13.1")
    )

    assert differences(one, one) == ()
    assert differences(one, other) == ("memory", "environment.torch")
