"""Orders of steps, repetition, building."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("LIF-1")
def test_any_order_of_training_and_evaluation(pipeconform_judge: Callable[[], None]) -> None:
    """Any order of training and evaluation is right, and evaluation leaves no trace (LIF-1)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("LIF-5")
def test_determinism(pipeconform_judge: Callable[[], None]) -> None:
    """The same case twice is bitwise equal, in the same processes and in new ones (LIF-5)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("LIF-6")
def test_building_changes_nothing(pipeconform_judge: Callable[[], None]) -> None:
    """Building changes no parameter, buffer, random state, flag or hook (LIF-6)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("LIF-2")
def test_evaluation_differentiates_nothing(pipeconform_judge: Callable[[], None]) -> None:
    """Evaluation records no graph, whatever its caller has switched off (LIF-2)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("LIF-4")
def test_state_is_the_whole_models(pipeconform_judge: Callable[[], None]) -> None:
    """All stages' states are the model's, and what is loaded is used (LIF-4)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("LIF-3")
def test_nothing_stays_behind(pipeconform_judge: Callable[[], None]) -> None:
    """After a step nothing of it is alive, and counts are flat over steps and pipelines (LIF-3)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("LIF-7")
def test_activations_are_bounded(pipeconform_judge: Callable[[], None]) -> None:
    """Activations kept at a time are bounded as the schedule says, whatever m is (LIF-7)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("LIF-8")
def test_closing(pipeconform_judge: Callable[[], None]) -> None:
    """A pipeline can be closed twice, and its group is of use afterwards (LIF-8)."""
    pipeconform_judge()
