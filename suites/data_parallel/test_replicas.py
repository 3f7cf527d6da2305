"""Replicas of the pipeline: the mean of gradients, when it is taken, and what must not disturb it."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("DPC-1")
def test_the_mean_over_replicas(pipeconform_judge: Callable[[], None]) -> None:
    """Gradients are the mean over replicas of the reference, on every stage and every replica (DPC-1)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-2")
def test_synchronised_once(pipeconform_judge: Callable[[], None]) -> None:
    """A stage's gradients are reduced once per step, after its last backward, not per microbatch (DPC-2)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-3")
def test_parameters_that_are_not_used_alike(pipeconform_judge: Callable[[], None]) -> None:
    """Another m, frozen and unused parameters and buffers leave the mean right (DPC-3)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-4")
def test_accumulation_and_options(pipeconform_judge: Callable[[], None]) -> None:
    """Accumulation over steps and the wrapper's options leave the mean right (DPC-4)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-5")
def test_tied_weights_in_replicas(pipeconform_judge: Callable[[], None]) -> None:
    """A weight tied across stages is the same in all stages and replicas after every step (DPC-5)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-6")
def test_late_replicas(pipeconform_judge: Callable[[], None]) -> None:
    """A replica that is late changes nothing (DPC-6)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-7")
def test_tensor_parallel_stages(pipeconform_judge: Callable[[], None]) -> None:
    """Stages that are cut over ranks give the reference's values, part by part (DPC-7)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-8")
def test_shards(pipeconform_judge: Callable[[], None]) -> None:
    """Every shard is that of the reference, gradients are cut as parameters, names are the builder's (DPC-8)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("DPC-9")
def test_synchronised_batch_norm(pipeconform_judge: Callable[[], None]) -> None:
    """A batch norm over all replicas normalises the same microbatch of all of them together (DPC-9)."""
    pipeconform_judge()
