"""The marker ``pipeconform_ranks`` in somebody's own test file, under a real pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

THEIRS = """
import os, signal
import pytest, torch, torch.distributed as dist
from hypothesis import given, strategies

@pytest.fixture
def ranks():
    return 2

@pytest.mark.pipeconform_ranks(4)
def test_sum(tmp_path):
    value = torch.tensor([dist.get_rank()])
    dist.all_reduce(value)
    assert value.item() == 6
    (tmp_path / str(dist.get_rank())).touch()
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 4

class TestOfClass:
    @pytest.mark.pipeconform_ranks(2)
    @pytest.mark.parametrize("more", [0])
    def test_method(self, ranks, *, more):
        assert dist.get_world_size() == ranks + more

@pytest.mark.pipeconform_ranks(2, environment={"THEIRS": "yes"})
def test_variable():
    assert os.environ["THEIRS"] == "yes"

@pytest.mark.ranks(2, record=True)
def test_short_name():
    assert dist.get_world_size() == 2

@pytest.mark.pipeconform_ranks(2)
def test_skip():
    pytest.skip("not on this machine")

@pytest.mark.pipeconform_ranks(2)
def test_one_wrong():
    assert dist.get_rank() == 0

@pytest.mark.pipeconform_ranks(2)
def test_one_killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.pipeconform_ranks(2, idle_limit=1)
def test_one_hangs():
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)

@pytest.mark.pipeconform_ranks(0)
def test_no_ranks():
    pass

@pytest.mark.pipeconform_ranks(2, limit=3)
def test_option():
    pass

@pytest.mark.pipeconform_ranks(2)
def test_fixture(capsys):
    pass

@pytest.mark.pipeconform_ranks(2)
@given(strategies.integers())
def test_drawn(number):
    pass
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> str:
    folder: Path = tmp_path_factory.mktemp("theirs")
    (folder / "test_theirs.py").write_text(THEIRS)
    (folder / "pytest.ini").write_text("[pytest]\npipeconform_ranks_marker = ranks\n")
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--import-mode=importlib"]
    done = subprocess.run(
        [sys.executable, *arguments], check=False, cwd=folder, capture_output=True, text=True, timeout=300
    )
    return done.stdout


def test_tests_pass_with_fixtures_parameters_classes_and_variables(outcome) -> None:
    for name in ("test_sum", "TestOfClass::test_method[0]", "test_variable", "test_short_name"):
        assert f"PASSED test_theirs.py::{name}" in outcome
    assert "7 failed, 4 passed, 1 skipped" in outcome


@pytest.mark.parametrize(
    "words",
    [
        "rank 1 raised: AssertionError: assert 1 == 0",
        "assert dist.get_rank() == 0",
        "rank 1 died: SIGKILL",
        "rank 1 stuck: no rank used CPU time for 1",
        "in test_one_hangs",
        "the marker reads pipeconform_ranks(0,); expected the number of ranks",
        "pipeconform_ranks(2,){'limit': 3}; expected",
        "capsys (CaptureFixture) cannot be sent to the ranks",
        "a Hypothesis test would draw different examples on every rank",
    ],
)
def test_every_failure_says_which_rank_and_why(outcome, words) -> None:
    assert words in outcome
