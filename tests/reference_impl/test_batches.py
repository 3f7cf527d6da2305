"""The check of a batch against those before it."""

from dataclasses import replace

import pytest
import torch
from pipeconform.reference_impl.batches import BatchCheck, parts_of, taken

from pipeconform.adapter import Microbatch
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


def _from_source(*microbatches, m=2):
    whole = _batch(torch.zeros(4, 3), m=m)
    return replace(whole, args=(), target=None, microbatches=(), source=iter(microbatches))


def _micro(value, *, samples=2):
    return Microbatch(args=(torch.full((samples, 3), value),), kwargs={}, target=torch.zeros(samples, 1))


def test_a_step_takes_its_own_microbatches_from_the_source():
    batch = _from_source(_micro(1.0), _micro(2.0, samples=1), _micro(3.0))

    parts = parts_of(taken(batch))

    assert [part.args[0][0, 0].item() for part in parts] == [1.0, 2.0]
    assert next(batch.source).args[0][0, 0].item() == 3.0


def test_a_source_that_ends_is_refused():
    with pytest.raises(ValueError, match="the source of the batch ended after 1 of 2 microbatches"):
        taken(_from_source(_micro(1.0)))


def test_microbatches_of_a_source_are_compared_with_the_first():
    check = BatchCheck()
    check.check(taken(_from_source(_micro(1.0), _micro(2.0, samples=1))))

    with pytest.raises(ValueError, match=r"another dtype .* expected float32\[2, 3\], got int64"):
        check.check(taken(_from_source(_micro(1.0), _micro(2))))


def test_a_batch_is_split_into_the_same_parts():
    batch = _batch(torch.arange(12.0).reshape(4, 3))

    assert [part.args[0].tolist() for part in parts_of(batch)] == [
        [[0, 1, 2], [3, 4, 5]],
        [[6, 7, 8], [9, 10, 11]],
    ]
