"""Numbers that are the same every time."""

import pytest
import torch


@pytest.fixture
def reproducible():
    """One thread, and the same random numbers every time; the generator is put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)
