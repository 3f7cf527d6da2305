"""With checkpoints, a partition that hands on a tensor that needs no gradient ends the backward in an error.

What: a partition takes an activation and positions (int64), and hands on both, the positions unchanged. With
  checkpoint="except_last", the default, and two chunks or more, and with checkpoint="always", the backward
  raises "element 1 of tensors does not require grad and does not have a grad_fn". It is the same with bool
  tensors and with floating ones that need no gradient (masks), and if the partition made them itself. If the
  positions stand first in the tuple, it is an IndexError, "pop from an empty deque". With checkpoint="never"
  all gradients are right.
Where: torchgpipe 0.0.7, checkpoint.py, Checkpoint.backward, line 269: `torch.autograd.backward(tensors,
  grad_output)` with all outputs of the partition; the IndexError is raised in line 262.
Why: line 268 asks whether any output requires a gradient, and line 269 takes all of them. As to the
  IndexError: Checkpointing.recompute hangs Recompute on the first tensor alone ("batch[0] is always
  requiring grad", which integers cannot), so that nothing has been computed again when Checkpoint.backward
  asks for it.
Requirement: TRN-30.
Schedules: GPipe, the only one. One partition is enough; it need not be one between others. A last partition
  that takes such a tensor and does not hand it on is right. A floating one raises only in the first
  partition that hands it on: Checkpoint makes it one that requires a gradient.
Known: near https://github.com/pytorch/pytorch/pull/45934 (the same error in torch.utils.checkpoint, mended there).
Possible fix: backward only from outputs that require a gradient, with their gradients; hang Recompute on one
  of them.
"""

import torch
from torch import nn
from torchgpipe import GPipe

SAMPLES, WIDTH = 4, 2
CASES = (  # checkpoint, chunks, partitions, dtype of the tensor without a gradient, its place in the tuple
    ("never", 2, 2, torch.int64, 1),
    ("except_last", 2, 2, torch.int64, 1),
    ("except_last", 2, 2, torch.bool, 1),
    ("except_last", 2, 2, torch.float32, 1),
    ("except_last", 1, 2, torch.int64, 1),
    ("always", 1, 2, torch.int64, 1),
    ("always", 1, 1, torch.int64, 1),
    ("never", 2, 2, torch.int64, 0),
    ("except_last", 2, 2, torch.int64, 0),
)


class First(nn.Linear):
    """Hands on the tensor without a gradient as it is."""

    def __init__(self, place):
        super().__init__(WIDTH, WIDTH)
        self.place = place

    def forward(self, given):
        positions, x = given[self.place], given[1 - self.place]
        y = super().forward(x + positions)
        return (y, positions) if self.place else (positions, y)


class Last(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, given):
        return super().forward(given[0] + given[1])


def backward(model, partitions, dtype, place):
    positions = torch.arange(SAMPLES * WIDTH).reshape(SAMPLES, WIDTH).to(dtype)
    x = torch.ones(SAMPLES, WIDTH)
    output = model((x, positions) if place else (positions, x))
    (output[1 - place] if partitions == 1 else output).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def model_of(partitions, place):
    torch.manual_seed(0)
    return nn.Sequential(First(place), *(Last() for _ in range(partitions - 1)))


def main():
    torch.set_num_threads(1)
    for checkpoint, chunks, partitions, dtype, place in CASES:
        expected = backward(model_of(partitions, place), partitions, dtype, place)
        pipe = GPipe(
            model_of(partitions, place),
            [1] * partitions,
            devices=["cpu"] * partitions,
            chunks=chunks,
            checkpoint=checkpoint,
        )
        try:
            actual = backward(pipe, partitions, dtype, place)
            right = all(torch.allclose(a, b) for a, b in zip(actual, expected, strict=True))
            text = "gradients right" if right else "gradients wrong"
        except (RuntimeError, IndexError) as error:
            text = f"{type(error).__name__} {str(error)!r}"
        case = f"checkpoint={checkpoint!r}, chunks={chunks}, partitions={partitions}"
        case += f", {str(dtype).removeprefix('torch.')} {'second' if place else 'first'}"
        print(f"{case}: expected gradients right, actual {text}")


if __name__ == "__main__":
    main()
