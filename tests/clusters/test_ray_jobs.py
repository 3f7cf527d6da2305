"""A run that is submitted to Ray as a job; skipped where ``ray[default]`` is not installed.

The cluster has one node. Further nodes of ``cluster_utils`` share a folder with the first, and the second removes the
job's working folder under the running job, which nodes on machines of their own cannot.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters.runs import ROOT, TINY, WRONG, found, local, result_in

pytest.importorskip("ray", reason="Ray is not installed: pip install 'pipeconform[ray]'")
pytest.importorskip("aiohttp_cors", reason="ray job submit needs ray[default]")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clusters/ray")]


@pytest.fixture
def jobs():
    """The address to which jobs are submitted."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": True})
    try:
        made.wait_for_nodes()
        yield f"http://{made.webui_url}"
    finally:
        made.shutdown()


def test_a_job_that_is_submitted_finds_the_same(jobs, tmp_path):
    submit = (str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", jobs)
    variables = json.dumps({"env_vars": {"PYTHONPATH": str(ROOT)}})
    run = (sys.executable, "-m", "pipeconform", "run", "--on", "ray", "--impl", WRONG, *TINY)
    (tmp_path / "given").mkdir()
    done = subprocess.run(
        [
            *(*submit, "--working-dir", str(tmp_path / "given"), "--runtime-env-json", variables),
            *("--", *run, "--out", str(tmp_path / "out")),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )

    said = done.stdout + done.stderr
    assert (tmp_path / "out/result.json").is_file(), said
    assert "failed" in said  # the job's code is 1: there are violations
    assert found(result_in(tmp_path / "out")) == local(tmp_path, WRONG, TINY)
