"""What comes out of the last stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("FWD-1")
def test_outputs_equal_the_unpipelined_models(pipeconform_judge: Callable[[], None]) -> None:
    """Each microbatch's output equals the unpipelined model's, bit for bit (FWD-1)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-2")
def test_merged_output_has_the_batchs_order_and_length(pipeconform_judge: Callable[[], None]) -> None:
    """The merged output has the batch's length and order for every batch size (FWD-2)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-3")
def test_outputs_appear_where_declared(pipeconform_judge: Callable[[], None]) -> None:
    """Outputs appear on the declared ranks and nowhere else (FWD-3)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-23")
def test_outputs_are_merged_by_their_own_rules(pipeconform_judge: Callable[[], None]) -> None:
    """An output is merged by its own rule: another dimension, once, or by a function (FWD-23)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-11")
def test_structured_outputs_keep_their_structure(pipeconform_judge: Callable[[], None]) -> None:
    """The last stage's tuple or dict reaches the loss and the user as it is (FWD-11)."""
    pipeconform_judge()
