"""Ranks as another project uses them: nothing of cases, contracts and judging is loaded, here or on the ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

USED_ALONE = {"errors", "ranks", "reading", "showing", "suggestions"}
"""What may be loaded of the package."""

SCRIPT = """
import json, sys

import torch
import torch.distributed as dist

from pipeconform import run_on_ranks


def loaded():
    return sorted({name.split(".")[1] for name in sys.modules if name.startswith("pipeconform.")})


def summed(start):
    value = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(value)
    return value.item(), loaded()


def fails_on_one():
    if dist.get_rank() == 1:
        raise ValueError("rank 1 says no")


def wait_for_each_other():
    work = dist.irecv(torch.zeros(2, 3), src=1 - dist.get_rank())
    work.wait()


if __name__ == "__main__":
    recorded = run_on_ranks(summed, 10, ranks=2, record=True).values
    failed = run_on_ranks(fails_on_one, ranks=2)
    hung = run_on_ranks(wait_for_each_other, ranks=2, idle_limit=60, record=True)
    json.dump(
        {
            "sums": [value for value, _ in recorded],
            "on ranks": recorded[0][1],
            "here": loaded(),
            "verdicts": [type(one).__name__ for one in failed],
            "failed": failed.explain(),
            "hung": hung.explain(),
        },
        sys.stdout,
    )
"""

TESTS = """
import sys

import pytest
import torch
import torch.distributed as dist


@pytest.mark.pipeconform_ranks(2)
def test_the_sum_is_right(tmp_path):
    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value)
    assert tmp_path.exists()
    assert value.item() == 1


@pytest.mark.pipeconform_ranks(2)
def test_one_rank_is_wrong():
    assert dist.get_rank() == 0


def test_nothing_else_is_loaded():
    found = sorted({name.split(".")[1] for name in sys.modules if name.startswith("pipeconform.")})
    print("loaded:", *found)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, object]:
    """What a script of another project prints."""
    file = tmp_path_factory.mktemp("project") / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_the_ranks_compute_together(told):
    assert told["sums"] == [21, 21]


def test_nothing_is_loaded_that_knows_of_pipelines(told):
    assert set(told["here"]) <= USED_ALONE
    assert set(told["on ranks"]) <= USED_ALONE
    assert "ranks" in told["here"], "the question is asked of the right modules"


def test_the_rank_that_raises_is_named(told):
    assert told["verdicts"] == ["Returned", "Raised"]
    assert told["failed"].startswith("rank 1 raised: ValueError: rank 1 says no")


def test_a_hang_is_explained(told):
    assert "rank 0 waits for receive of float32[2, 3] from rank 1" in told["hung"]
    assert "a circle: rank 0 waits for rank 1 waits for rank 0" in told["hung"]


def test_the_marker_needs_nothing_but_pytest(tmp_path):
    (tmp_path / "test_theirs.py").write_text(textwrap.dedent(TESTS))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-s", "test_theirs.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "rank 1 raised: AssertionError: assert 1 == 0" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "loaded:" in line]
    assert set(line.partition("loaded:")[2].split()) <= {*USED_ALONE, "plugin"}
