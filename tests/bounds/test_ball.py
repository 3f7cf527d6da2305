import pytest
import torch

from pipeconform.bounds.ball import _by_samples, _of_samples

pytestmark = pytest.mark.usefixtures("reproducible")

PRODUCTS = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((3,), (6, 3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((2, 3), (6, 3, 4)),
    ((6, 2, 3), (3,)),
    ((6, 2, 3), (3, 4)),
    ((6, 2, 3), (6, 3, 4)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS, ids=str)
def test_products_of_all_samples_at_once_are_those_of_each_sample(left, right):
    """A product of five samples is five products, whatever the shapes broadcast to."""
    first, second = (torch.randn(5, *shape, dtype=torch.float64) for shape in (left, right))

    torch.testing.assert_close(
        _of_samples(torch.matmul, first, second[0]), torch.stack([torch.matmul(a, second[0]) for a in first])
    )
    torch.testing.assert_close(
        _by_samples(torch.matmul, first[0], second), torch.stack([torch.matmul(first[0], b) for b in second])
    )
