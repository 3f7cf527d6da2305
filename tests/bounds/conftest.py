"""Numbers that are the same every time."""

import pytest
import torch


@pytest.fixture
def reproducible():
    """Use one thread and the same random numbers every time, and restore the generator."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)
