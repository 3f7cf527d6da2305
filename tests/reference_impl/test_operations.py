"""A step by hand: two stages on one rank, driven microbatch by microbatch, in order and out of it."""

from __future__ import annotations

import pytest
import torch
from pipeconform.reference_impl.errors import OrderError
from pipeconform.reference_impl.link import Link
from pipeconform.reference_impl.operations import ChunkOperations
from pipeconform.reference_impl.runtime import Step, Work
from pipeconform.reference_impl.stage import Stage
from reference_models import WIDTH, build_stage, draw

M = 3


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def _opened() -> tuple[Step, dict[int, ChunkOperations]]:
    work = Work(
        inputs=[(draw(2, WIDTH, seed=k),) for k in range(M)],
        kwargs={},
        targets=[draw(2, WIDTH, seed=50 + k) for k in range(M)],
        loss=_loss,
        divisor=M,
    )
    stages = {s: Stage(build_stage("plain", s, 2), index=s) for s in (0, 1)}
    link = Link(None, ranks=(0,), device=torch.device("cpu"))
    step = Step(work, stages=stages, placement=(0, 0), rank=0, link=link, name="rank 0")
    return step, {s: ChunkOperations(step, stage=s, num_microbatches=M) for s in stages}


@pytest.mark.parametrize("split", [(), (1,), (0, 1, 2)])
def test_a_step_by_hand_is_a_step(split: tuple[int, ...]) -> None:
    step, stages = _opened()
    plain = [build_stage("plain", s, 2) for s in (0, 1)]
    for k in range(M):
        stages[0].forward(k)
        stages[1].forward(k)
        _loss(plain[1](plain[0](*step.work.inputs[k])), step.work.targets[k]).div(M).backward()
    for s in (1, 0):
        for k in range(M):
            stages[s].backward(k, full=k not in split)
        for k in reversed(split):
            stages[s].backward_weight(k)
        assert step.stages[s].unfinished == ()
        stages[s].finish()

    for s, right in enumerate(plain):
        for mine, expected in zip(step.stages[s].module.parameters(), right.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (("1 forward 0",), "stage 1 .* forward of microbatch 0, but its input is not here"),
        (("0 forward 3",), r"stage 0 .* forward of microbatch 3; this step has microbatches 0 to 2"),
        (("0 forward -1",), "stage 0 .* forward of microbatch -1; this step has"),
        (("0 backward 0",), "backward of microbatch 0, of which the forward is due"),
        (("0 forward 0", "0 backward 0"), "microbatch 0, but the gradient of its output is not here"),
        (("0 backward_weight 5",), "weight part of microbatch 5; this step has"),
        (("0 send_forward 1",), "send_forward of microbatch 1, but its output is not here"),
        (("0 send_backward 1",), "send_backward of microbatch 1, but the gradient of its input is not"),
        (("0 receive_backward 1",), "receive_backward of microbatch 1, of which the forward is due"),
        (("0 forward 1", "0 receive_forward 1"), "receive_forward of microbatch 1, of which the backward"),
    ],
)
def test_a_call_that_is_not_due_says_what_is(calls: tuple[str, ...], words: str) -> None:
    _, stages = _opened()

    def call(text: str) -> None:
        s, name, k = text.split()
        getattr(stages[int(s)], name)(int(k))

    for text in calls[:-1]:
        call(text)
    with pytest.raises(OrderError, match=words):
        call(calls[-1])
    with pytest.raises(OrderError, match=words):
        call(calls[-1])  # nothing was changed


def _run_to_the_end(stages: dict[int, ChunkOperations], *, but: int | None = None) -> None:
    for s, calls in ((0, "forward"), (1, "forward"), (1, "backward"), (0, "backward")):
        for k in range(M):
            if (s, calls, k) != (0, "backward", but):
                getattr(stages[s], calls)(k)


def test_finishing_forgets_every_microbatch() -> None:
    step, stages = _opened()
    _run_to_the_end(stages)
    stages[0].finish()

    assert step.stages[0].left(M) == (0, 1, 2)  # all of them are due in the next step


def test_a_step_that_is_not_through_does_not_end() -> None:
    _, stages = _opened()
    with pytest.raises(OrderError, match=r"stage 0 .* end of the step; unfinished: .*microbatch 2"):
        stages[0].finish()
    _run_to_the_end(stages, but=1)
    with pytest.raises(OrderError, match=r"unfinished: microbatch 1$"):
        stages[0].finish()
    stages[0].backward(1)
    stages[0].finish()
