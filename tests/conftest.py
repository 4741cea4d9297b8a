import numpy as np
import pytest
import torch

from sdgmnet.data.patchset import PatchSet, random_test_pairs
from sdgmnet.encoders import SDGMNet

torch.set_num_threads(1)  # small tensors: more threads only wait for each other


def blob_patches(points: int, views: int, seed: int) -> PatchSet:
    """Patches that can be learned: each point is a coarse random image, each view adds noise and a ramp of light."""
    rng = np.random.default_rng(seed)
    image = np.kron(rng.normal(0, 40, (points, 1, 8, 8)), np.ones((1, 1, 8, 8)))
    slope = rng.normal(0, 80, (points, views, 2, 1))
    position = np.linspace(-1, 1, 64)
    ramp = (slope[:, :, 0] * position)[..., None, :] + (slope[:, :, 1] * position)[..., :, None]
    noisy = 128 + image + ramp + rng.normal(0, 40, (points, views, 64, 64))
    patches = np.clip(noisy, 0, 255).astype(np.uint8).reshape(-1, 64, 64)
    made = PatchSet(f"blobs{seed}", patches, np.repeat(np.arange(points) * 7 + 3, views))
    return made.with_test_pairs(random_test_pairs(made, 200, seed))


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    """Of a module's own: tests may change it."""
    torch.manual_seed(0)
    return SDGMNet().eval()


@pytest.fixture(scope="session")
def blobs() -> PatchSet:
    return blob_patches(points=60, views=3, seed=1)


@pytest.fixture(scope="session")
def other_blobs() -> PatchSet:
    return blob_patches(points=60, views=3, seed=2)
