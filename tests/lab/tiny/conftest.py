import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Models of this size are slower on more threads, most of all beside other processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
