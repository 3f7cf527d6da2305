"""The files behind an adapter, as one rank process says them, and in one line."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from pipeconform.certificate.engine import engine_in, engine_text
from pipeconform.errors import HarnessError
from pipeconform.execute.engine import Component
from pipeconform.ranks.verdict import Raised, Returned, VerdictVector

MINE = Component(name="mine", kind="tree", files=1, digest="1" * 64)
TORCH = Component(name="torch", version="2.13.0", kind="distribution", files=900, digest="2" * 64)


def campaign_that(verdict, asked=None):
    """A campaign whose oracle process answers with a verdict."""

    def run(task, payload, *, time_limit):
        if asked is not None:
            asked.append((task, payload))
        return VerdictVector((verdict,))

    runner = SimpleNamespace(
        implementation="mine.py:A", pools=SimpleNamespace(oracle=SimpleNamespace(run=run))
    )
    return SimpleNamespace(runner=lambda variant: {"default": runner}[variant])


def test_a_rank_process_is_asked_for_the_implementation_s_files():
    asked = []
    answer = Returned(msgspec.msgpack.encode((MINE, TORCH)))

    assert engine_in(campaign_that(answer, asked)) == (MINE, TORCH)
    assert asked == [("pipeconform.execute.engine:answer", b"mine.py:A")]


def test_a_process_that_could_not_read_them_is_an_error_of_the_harness():
    with pytest.raises(HarnessError, match=r"(?s)reading the engine's files failed:.*OSError: unreadable"):
        engine_in(campaign_that(Raised("OSError", "unreadable")))


def test_components_are_told_with_version_number_of_files_and_the_beginning_of_their_digest():
    assert engine_text([MINE, TORCH]) == "mine (1 file, 111111111111), torch 2.13.0 (900 files, 222222222222)"
    assert engine_text([]) == "no files are known"
