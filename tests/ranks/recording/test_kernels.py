"""What a release of torch has that the recorder cannot see is found, and never judged."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from pipeconform.ranks.recording.kernels import unseen
from tests.ranks.recording.test_recorder import of_ranks

_ANOTHER_TORCH = """
import torch, torch.distributed
library = torch.library.Library("c10d", "FRAGMENT")
library.define("put_(Tensor x, __torch__.torch.classes.c10d.ProcessGroup team) -> ()")
waits = torch.library.Library("_c10d_functional", "FRAGMENT")
waits.define("wait_any(Tensor[] tensors) -> int")

from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.ranks.recording.kernels import unseen
from pipeconform.spec import profile, requirement

print(*unseen(), sep="; ")
target = PipelineTarget.of(TorchPipelining().describe(), profile=profile("core"), ranks=(1, 2), seed=0)
for name in ("COM-1", "FWD-1"):
    asked = target.ask(requirement(name), "GPipe", promises=lambda: False)
    print(name, getattr(asked, "status", "is judged"), getattr(asked, "reason", ""))
"""


def test_everything_of_this_release_is_seen():
    assert unseen() == ()


def test_requirements_about_communication_are_not_judged_if_a_release_has_operators_that_are_not_seen():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ANOTHER_TORCH], capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines() == [
        "c10d::put_; _c10d_functional::wait_any",
        "COM-1 skipped not seen: the recorder does not know c10d::put_, _c10d_functional::wait_any of this torch",
        "FWD-1 is judged ",
    ], done.stderr


@pytest.mark.skipif(
    not hasattr(torch.ops._c10d_functional, "wait_tensors"),
    reason="this release of torch has no wait_tensors",
)
def test_a_wait_for_several_tensors_ends_all_of_them():
    def body(rank: int) -> None:
        import torch  # of its own: cloudpickle would send torch.ops along with a global one

        sums = [functional.all_reduce(torch.ones(n), "sum", dist.group.WORLD) for n in (2, 3)]
        torch.ops._c10d_functional.wait_tensors([getattr(one, "elem", one) for one in sums])

    found = of_ranks(body)[0]

    assert [(moment.kind, moment.operation) for moment in found.moments][:4] == [
        ("issue", 0),
        ("issue", 1),
        ("wait", 0),
        ("wait", 1),
    ]
