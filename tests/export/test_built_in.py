"""Programs of adapters that are built in and whose engines violate nothing: used wrongly, and mended."""

from __future__ import annotations

import pytest

from benchmarks.programs.asked import USED_WRONGLY, WrongUse, of_fault
from benchmarks.programs.running import replayed
from pipeconform.ranks.pools import Pools
from tests.export.conftest import Shown


@pytest.mark.slow
@pytest.mark.parametrize("use", USED_WRONGLY, ids=lambda use: use.right)
def test_a_wrong_use_of_an_engine_is_reproduced_until_it_is_mended(
    shown: Shown, pools: Pools, use: WrongUse
) -> None:
    if not use.is_installed:
        pytest.skip(f"needs {use.distribution}")
    asked = of_fault(use, pools)
    assert asked is not None
    wrong = shown(asked.question, implementation=use.reference)
    mended = shown(arguments=("--impl", use.right))

    assert replayed(asked.question, use.reference, pools) == "reproduced"
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert f"\nREPRODUCED:\n{use.requirement} failed: " in wrong.stdout
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert f"NOT REPRODUCED: {use.requirement} met" in mended.stdout
