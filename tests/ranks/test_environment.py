"""An environment variant is data, and one that does not take effect is an error."""

from __future__ import annotations

import pytest

from pipeconform.errors import VariantError
from pipeconform.ranks import Crew, Environment, Pool

VARIANT = Environment("test", {"PIPECONFORM_TEST": "on", "HOME": None})


def test_ranks_see_the_variant_and_report_it(start_server):
    with Pool(Crew(start_server(VARIANT), size=1, backend=None)) as pool:
        seen = pool.wait_until_formed()[0]
    assert (seen["PIPECONFORM_TEST"], seen["HOME"], seen["OMP_NUM_THREADS"]) == ("on", None, "1")


def test_a_variant_that_does_not_take_effect_is_an_error(start_server):
    server = start_server(VARIANT, preload=("changes_environment",))
    with Pool(Crew(server, size=1, backend=None)) as pool, pytest.raises(VariantError, match="'meddled'"):
        pool.run("rank_tasks:facts", time_limit=30)


def test_the_caller_keeps_what_the_variant_says_nothing_about(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    variables = VARIANT.process_environment()
    assert (variables["GLOO_SOCKET_IFNAME"], variables["OMP_NUM_THREADS"]) == ("eth7", "1")
    assert "GLOO_SOCKET_IFNAME" not in VARIANT.effective()


def test_gloo_uses_the_loopback_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert Environment().effective()["GLOO_SOCKET_IFNAME"] in {"lo", "lo0"}


def test_a_variant_may_overrule_the_base(monkeypatch):
    assert Environment("many", {"OMP_NUM_THREADS": "4"}).effective()["OMP_NUM_THREADS"] == "4"


def test_an_environment_cannot_be_changed_afterwards():
    variables: dict[str, str | None] = {"A": "1"}
    environment = Environment("a", variables)
    variables["A"] = "2"
    assert environment.variables["A"] == "1"


def test_a_missing_setting_is_named_as_such():
    with pytest.raises(VariantError, match="asks for A='1', but rank 3 sees A unset"):
        Environment("a", {"A": "1"}).check({}, rank=3)
