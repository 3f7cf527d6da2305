"""Which processes of this machine a variant gets; none is started."""

from types import SimpleNamespace

import pytest

from pipeconform.campaign import here
from pipeconform.campaign.preload import PRELOAD
from pipeconform.judged_on import JudgedOn, judged_on
from pipeconform.ranks.debugger import VARIABLE
from pipeconform.ranks.devices import Devices
from pipeconform.ranks.environment import Environment

DEVICES = SimpleNamespace(
    device_type="cpu", backend="gloo", settings=lambda own: {"NEEDED": "1", "BOTH": "device"}
)


@pytest.fixture
def made(monkeypatch):
    """What pools are made of."""
    monkeypatch.setattr(here, "Pools", lambda environment, **how: (environment, how))
    monkeypatch.setattr(here, "leases_of", lambda devices: ("leases of", devices))
    return here.pools_here


def test_what_devices_need_is_set_and_what_a_variant_says_comes_first():
    assert here.set_up(None, DEVICES) == Environment("default", {"NEEDED": "1", "BOTH": "device"})
    variant = Environment("strict", {"BOTH": "variant", "MORE": "2"})
    assert here.set_up(variant, DEVICES) == Environment(
        "strict", {"NEEDED": "1", "BOTH": "variant", "MORE": "2"}
    )


def test_processes_have_the_devices_their_leases_and_what_is_asked_for(made):
    environment, how = made(Environment("strict", {"MORE": "2"}), DEVICES)
    assert environment == Environment("strict", {"NEEDED": "1", "BOTH": "device", "MORE": "2"})
    assert how == {
        "preload": PRELOAD,
        "devices": DEVICES,
        "leases": ("leases of", DEVICES),
        "shows_output": False,
    }
    _, how = made(None, DEVICES, preload=("torch",), shows_output=True)
    assert (how["preload"], how["shows_output"]) == (("torch",), True)


def test_the_debugger_is_told_to_the_ranks_by_their_environment(made):
    environment, _ = made(Environment("strict", {"MORE": "2"}), DEVICES, debugger="1 /dev/pts/3")

    assert environment.name == "strict"
    assert environment.variables == {"NEEDED": "1", "BOTH": "device", "MORE": "2", VARIABLE: "1 /dev/pts/3"}


ON_NCCL = {"PIPECONFORM_DEVICE": "cuda", "PIPECONFORM_BACKEND": "nccl"}


@pytest.mark.parametrize(
    ("device", "backend", "own", "said"),
    [
        ("cuda", "nccl", {}, ON_NCCL),
        ("cuda", "cpu:gloo,cuda:nccl", {"PIPECONFORM_BACKEND": "gloo"}, ON_NCCL),
        ("cpu", "gloo", {}, {}),
        ("cpu", "mpi", {}, {"PIPECONFORM_DEVICE": "cpu", "PIPECONFORM_BACKEND": "mpi"}),
        ("cpu", "gloo", ON_NCCL, {"PIPECONFORM_DEVICE": "cpu", "PIPECONFORM_BACKEND": "gloo"}),
    ],
)
def test_ranks_learn_where_they_are_judged_whatever_a_run_around_this_one_has_set(
    device, backend, own, said, monkeypatch
):
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    variables = here.set_up(None, Devices(device_type=device, backend=backend, count=None)).variables

    assert {name: value for name, value in variables.items() if name in ON_NCCL} == said
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert judged_on() == JudgedOn(device_type=device, backend="nccl" if device == "cuda" else backend)
