"""On a device, what changes the bits of a result is set and reported; on the CPU nothing is."""

from __future__ import annotations

from pipeconform.ranks.on_ranks import run_on_ranks
from pipeconform.ranks.pins import pin


def test_the_cpu_stays_as_torch_has_it() -> None:
    def body() -> tuple[dict[str, str], bool]:
        import torch

        return pin("cpu"), torch.are_deterministic_algorithms_enabled()

    assert run_on_ranks(body, ranks=1).values[0] == ({}, False)


def test_what_is_pinned_is_reported_as_it_is_afterwards() -> None:
    def body() -> tuple[dict[str, str], tuple[bool, bool, bool]]:
        import torch  # cloudpickle would send along what is below a global's name

        before = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
        found = pin("cuda")  # settings can be made without a device
        set_now = (
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            torch.are_deterministic_algorithms_enabled(),
        )
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.use_deterministic_algorithms(before[1])
        return found, set_now

    found, set_now = run_on_ranks(body, ranks=1, environment={"PINNED_HERE": "1"}).values[0]
    assert set_now == (False, False, True)
    assert found["torch.backends.cudnn.allow_tf32"] == "False"
    assert found["torch.use_deterministic_algorithms"] == "True"
    assert len(found) >= 7


def test_pinning_imports_no_compiler_and_one_that_is_imported_later_is_deterministic_too() -> None:
    def body() -> tuple[bool, bool, bool]:
        import sys

        import torch

        pin("cuda")
        imported = "torch._inductor" in sys.modules
        import torch._inductor.config as compiler

        later = compiler.deterministic
        torch.use_deterministic_algorithms(False)
        pin("cuda")  # now that the compiler is there
        return imported, later, compiler.deterministic

    environment = {"PINNED_HERE": "2"}
    assert run_on_ranks(body, ranks=1, environment=environment).values[0] == (False, True, True)
