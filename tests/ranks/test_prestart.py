"""A server that was started ahead serves who asks for the same, and nobody else; it never outlives its use."""

import sys

import pytest

from pipeconform.ranks import Environment, Pools
from pipeconform.ranks.prestart import _waiting, drop_ahead, server_of, start_ahead

GUARD = 30.0  # seconds no task comes near unless something hangs


@pytest.fixture(autouse=True)
def nobody_waits():
    yield
    drop_ahead()


def pid_ahead():
    return _waiting()[0][1].pid


def test_pools_take_the_server_that_was_started_for_them(survivors):
    start_ahead(preload=())
    pid = pid_ahead()
    with Pools(preload=()) as pools, Pools(preload=()) as others:
        assert pools.server.pid == pid != others.server.pid
        assert len(pools.oracle.wait_until_formed()) == 1
    assert survivors([pid]) == []


@pytest.mark.parametrize(
    ("environment", "preload"),
    [(Environment("own", {"MEANING": "42"}), ()), (Environment(), ("json",))],
    ids=["variables", "modules"],
)
def test_a_server_that_is_not_as_asked_for_is_ended(environment, preload, survivors):
    start_ahead(preload=())
    pid = pid_ahead()
    with server_of(environment, preload=preload) as server:
        assert server.pid != pid
        assert survivors([pid]) == []


def test_a_server_that_looks_for_modules_elsewhere_is_ended(monkeypatch, tmp_path):
    start_ahead(preload=())
    pid = pid_ahead()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with server_of(Environment(), preload=()) as server:
        assert server.pid != pid


def test_a_server_that_nobody_asks_for_is_ended(survivors):
    start_ahead(preload=())
    first = pid_ahead()
    start_ahead(preload=())
    second = pid_ahead()
    drop_ahead()
    drop_ahead()
    assert survivors([first, second]) == []
