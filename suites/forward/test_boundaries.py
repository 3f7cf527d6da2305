"""What crosses from stage to stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("FWD-4")
def test_containers_mean_what_they_say(pipeconform_judge: Callable[[], None]) -> None:
    """Containers of boundary tensors arrive as what they are (FWD-4)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-5")
def test_tensors_without_gradient_arrive_unchanged(pipeconform_judge: Callable[[], None]) -> None:
    """Integer, boolean and constant boundary tensors arrive unchanged (FWD-5)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-6")
def test_boundary_dtypes_are_exact(pipeconform_judge: Callable[[], None]) -> None:
    """Low-precision and mixed boundary dtypes are transported exactly (FWD-6)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-9")
def test_keyword_arguments_reach_their_stage(pipeconform_judge: Callable[[], None]) -> None:
    """Keyword arguments reach their stage, split or replicated (FWD-9)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-7")
def test_views_arrive_or_are_refused(pipeconform_judge: Callable[[], None]) -> None:
    """Stage outputs that are views arrive with the right values, or are refused on every rank (FWD-7)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-8")
def test_any_number_of_dimensions_and_any_size(pipeconform_judge: Callable[[], None]) -> None:
    """Boundary tensors of 0 to 5 dimensions, of size 1 and of size 0, arrive as they are (FWD-8)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-10")
def test_skip_connections(pipeconform_judge: Callable[[], None]) -> None:
    """What a stage makes for stages further on arrives there, and every use counts (FWD-10)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-12")
def test_ignored_inputs_and_outputs(pipeconform_judge: Callable[[], None]) -> None:
    """A stage that ignores an input, and an output nobody consumes, disturb nothing (FWD-12)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-21")
def test_float8_is_exact_or_refused(pipeconform_judge: Callable[[], None]) -> None:
    """float8 boundary tensors arrive bit for bit, or are refused on every rank (FWD-21)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-15")
def test_objects_reach_their_stage_whole(pipeconform_judge: Callable[[], None]) -> None:
    """Keyword arguments that are no tensors reach their stage whole, in every step (FWD-15)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-22")
def test_split_rules_of_keyword_arguments(pipeconform_judge: Callable[[], None]) -> None:
    """A keyword argument is split by its own rule: another dimension, whole, or a function (FWD-22)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-16")
def test_another_batch_dimension(pipeconform_judge: Callable[[], None]) -> None:
    """Batches in dimension 1 are split and merged there (FWD-16)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-19")
def test_dtensors_keep_their_placement(pipeconform_judge: Callable[[], None]) -> None:
    """A DTensor that is handed on arrives as one, with its placements and every rank's part (FWD-19)."""
    pipeconform_judge()
