import time

import pytest
import torch

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import PairSampler
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import iterate_once, start
from tests.conftest import blob_patches


@pytest.mark.slow
def test_a_batch_costs_less_than_a_tenth_of_its_step() -> None:
    data: PatchSet = blob_patches(points=1500, views=2, seed=5)
    threads = torch.get_num_threads()
    try:
        run = start(TrainConfig(batch_size=1024, iterations=10, threads=2), [data])
        sampler = PairSampler([data], 0)
        iterate_once(run)
        began = time.perf_counter()
        iterate_once(run)
        step = time.perf_counter() - began
        began = time.perf_counter()
        for number in range(3):
            sampler.batch(number, 1024)
        batch = (time.perf_counter() - began) / 3
        print(f"batch {batch:.3f} s, step {step:.3f} s")
        assert batch < 0.1 * step
    finally:
        torch.set_num_threads(threads)
