"""The check of a batch against those before it."""

import pytest
import torch
from pipeconform.reference_impl.batches import BatchCheck

from pipeconform.case.build import data


def _batch(*args, samples=4, m=2):
    return data.assemble(
        args=args,
        kwargs={},
        target=torch.zeros(samples, 1),
        loss_kwargs={},
        batch_dim=0,
        num_microbatches=m,
    )


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        (
            (torch.zeros(4, 4),),
            ValueError,
            r"argument 0 of stage 0 .* expected float32\[4, 3\], got float32\[4, 4\]",
        ),
        (
            (torch.zeros(4, 3).double(),),
            ValueError,
            r"another dtype .* expected float32\[4, 3\], got float64",
        ),
        ((torch.zeros(4, 3), torch.zeros(4, 3)), ValueError, "given 2 arguments; expected 1"),
        ((None,), TypeError, "argument 0 of stage 0 is NoneType None; expected a tensor"),
        ((torch.zeros(5, 3),), ValueError, "the batch size is not clear"),
    ],
)
def test_a_batch_that_does_not_look_like_the_first_is_refused(args, error, words):
    check = BatchCheck()
    check.check(_batch(torch.zeros(4, 3)))

    with pytest.raises(error, match=words):
        check.check(_batch(*args))


def test_another_number_of_samples_is_no_other_batch():
    check = BatchCheck()
    check.check(_batch(torch.zeros(4, 3)))
    check.check(_batch(torch.zeros(6, 3), samples=6))


def test_fewer_samples_than_microbatches_are_refused():
    with pytest.raises(ValueError, match="a batch of 1 samples cannot be split into 2 microbatches"):
        BatchCheck().check(_batch(torch.zeros(1, 3), samples=1))
