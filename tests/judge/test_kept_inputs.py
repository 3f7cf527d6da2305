"""A stage that keeps its inputs finds that one of them has changed."""

import torch

from pipeconform.observe.array import Array
from tests.judge.honest import found, honest_example, with_value

NAME = "blocks.0.kept_inputs_changed"


def _told(value: torch.Tensor) -> list[tuple[str, int | None]]:
    made = with_value(honest_example("kept inputs"), "buffers", 1, NAME, Array.of(value), rank=1)
    return [(one.kind, one.stage) for one in found("FWD-35", made)]


def test_an_input_that_changed_is_told_in_words_of_its_own():
    assert _told(torch.tensor(False)) == []
    assert _told(torch.tensor(True)) == [("kept input changed", 1)]


def test_a_buffer_that_is_wrong_in_another_way_is_a_wrong_buffer():
    assert _told(torch.tensor(0.0)) == [("buffer dtype", 1)]
