"""What code in a rank's process writes to the controller is data: read by a schema, or the rank's failure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import pipeconform
from pipeconform.ranks import Crew, ForkServer, Pool, Raised, Returned
from pipeconform.ranks.answered import read_answers
from pipeconform.ranks.verdict import Cause
from pipeconform.ranks.wire import Kind
from tests.facts import tells
from tests.ranks.plain_values import read

GUARD = 30.0
ROOT = Path(pipeconform.__file__).parent

MAY_PICKLE = {
    "ranks/on_ranks.py": "both sides are the caller's",
    "ranks/flight.py": "in the rank, torch's own dump of the same process",
    "adapters/torch_wrappers.py": "in the rank, which pickles what DPW-36 asks for",
}


@pytest.fixture
def pool(server: ForkServer) -> Iterator[Pool]:
    with Pool(Crew(server, size=2), idle_limit=0.5) as pool:
        yield pool


def whole(pool: Pool) -> bool:
    return read(pool.run("rank_tasks:total", time_limit=GUARD)).values == (3.0, 3.0)


def test_a_pickle_that_a_rank_sends_is_not_unpickled(pool, tmp_path):
    made = tmp_path / "made by the payload"
    vector = pool.run("rank_tasks:send_a_pickle", f"1 {made}".encode(), time_limit=GUARD)
    assert [type(one) for one in vector] == [Raised, Raised]
    assert tells(vector[0].message, "this rank's process", "frame of kind 6", "does not exist")
    assert whole(pool)
    assert not made.exists()


NO_ANSWERS = {
    "a kind there is none of": (77, 0, b"", "a frame of kind 77"),
    "more than fits into memory": (Kind.BYTES, 1 << 62, b"", "a frame of 4611686018427387904 bytes"),
    "a greeting in the middle": (Kind.READY, 0, b"", "a frame of kind READY"),
    "an exception that is none": (Kind.RAISED, 3, b"\xc1\xc1\xc1", "something other than Raised"),
    "an exception nested too deep": (Kind.RAISED, 99_999, b"\x91" * 99_999, "something other than Raised"),
    "an exception that is no text": (
        Kind.RAISED,
        0,
        msgspec.msgpack.encode({"type": 1}),
        "something other than Raised",
    ),
}


@pytest.mark.parametrize("sent", NO_ANSWERS)
def test_what_is_no_answer_is_its_ranks_failure_and_the_pool_goes_on(pool, sent):
    kind, length, body, expected = NO_ANSWERS[sent]
    payload = b"1 %d %d " % (kind, length or len(body)) + body
    first, second = pool.run("rank_tasks:send_a_frame", payload, time_limit=GUARD)
    assert isinstance(first, Raised)
    assert first.type == "pipeconform.NotAnAnswer"
    assert expected in first.message
    assert isinstance(second, Returned)
    assert whole(pool)


def test_an_answer_that_is_not_what_was_asked_for_counts_as_raised(pool):
    body = msgspec.msgpack.encode(Cause(type="a", message="b"))
    vector = pool.run("rank_tasks:echo", [body, b"\x91" * 99_999], time_limit=GUARD)
    first, second = read_answers(vector, Cause)
    assert first.value == Cause(type="a", message="b")
    assert second.type == "pipeconform.NotAnAnswer"
    assert second.message.startswith("this rank's process sent something other than Cause: ")


def test_a_moment_that_was_not_does_not_reach_the_verdicts(pool):
    """A rank that says it answered before it was asked would be every failure's root."""
    vector = pool.run("rank_tasks:answer_at", b"nan", time_limit=GUARD)
    assert all(0.0 <= one.after <= GUARD for one in vector)


def _unpickling(tree: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Import) and any(one.name.partition(".")[0] in MODULES for one in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES)
        for node in ast.walk(tree)
    )


MODULES = {"pickle", "cloudpickle", "shelve", "marshal", "dill"}


def test_nothing_else_of_the_product_can_unpickle():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if _unpickling(ast.parse(path.read_text()))
    }
    assert found == set(MAY_PICKLE)
