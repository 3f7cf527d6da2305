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


@pytest.mark.parametrize(
    ("lines", "processor"),
    [
        (["model name\t: A 1 GHz", "model name\t: B"], "A 1 GHz"),
        (["processor\t: 0", "vendor_id\t: it", "model name\t: A: b"], "A: b"),
        (["Processor\t: another kind of list"], "a processor"),
        ([], "a processor"),
    ],
    ids=["the first", "the last line", "no such line", "no list"],
)
def test_a_processor_has_its_model_s_name_or_what_python_knows(environment, monkeypatch, lines, processor):
    monkeypatch.setattr("pipeconform.certificate.machine._lines", lambda path: list(lines))
    monkeypatch.setattr(platform, "processor", lambda: "a processor")

    assert machine_environment(environment).processor == processor


def test_where_python_does_not_know_the_processor_either_its_kind_is_told(environment, monkeypatch):
    monkeypatch.setattr("pipeconform.certificate.machine._lines", lambda path: [])
    monkeypatch.setattr(platform, "processor", lambda: "")

    found = machine_environment(environment)
    assert found.processor == platform.machine()
    assert found.drivers == ()


def test_the_driver_s_version_is_the_first_line_about_it(environment, monkeypatch):
    monkeypatch.setattr("pipeconform.certificate.machine._lines", lambda path: ["570.1", "built somewhere"])

    assert machine_environment(environment).drivers == ("570.1",)
