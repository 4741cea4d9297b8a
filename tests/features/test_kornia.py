"""LAFs and descriptors next to kornia's own."""

import kornia.feature as KF
import numpy as np
import pytest
import torch

from sdgmnet.descriptors import describe
from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.kornia import from_lafs, to_lafs
from sdgmnet.features.patches import cut_patches, inside
from tests.features.samples import noise_image


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return noise_image(320, 300)


@pytest.fixture(scope="module")
def keypoints(image: np.ndarray) -> Keypoints:
    found = detect(image)
    return found.select(np.flatnonzero(inside(found, image.shape[1], image.shape[0]))[::10])


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    return SDGMNet().eval()


def as_tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image.astype(np.float32) / 255)[None, None]


def test_frames_mean_to_kornia_what_they_mean_to_us(keypoints: Keypoints) -> None:
    lafs = to_lafs(keypoints)
    assert lafs.shape == (1, len(keypoints.xy), 2, 3) and lafs.dtype == torch.float32
    np.testing.assert_allclose(KF.get_laf_center(lafs)[0].numpy(), keypoints.xy, rtol=1e-6)
    np.testing.assert_allclose(KF.get_laf_scale(lafs)[0, :, 0, 0].numpy(), 6 * keypoints.sigma, rtol=1e-5)
    turn = np.deg2rad(KF.get_laf_orientation(lafs)[0, :, 0].numpy()) + keypoints.angle  # the other way round
    np.testing.assert_allclose(np.cos(turn), 1, atol=1e-6)
    made = KF.laf_from_center_scale_ori(
        torch.from_numpy(keypoints.xy[None]).float(),
        torch.from_numpy(6 * keypoints.sigma)[None, :, None, None].float(),
        torch.from_numpy(-np.rad2deg(keypoints.angle))[None, :, None].float(),
    )
    torch.testing.assert_close(lafs, made, rtol=1e-4, atol=1e-3)


def test_frames_go_there_and_back(keypoints: Keypoints) -> None:
    back = from_lafs(to_lafs(keypoints), torch.from_numpy(keypoints.response)[None])
    for one, two in zip(keypoints, back, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)
    assert from_lafs(to_lafs(keypoints.select(np.arange(0)))).xy.shape == (0, 2)
    assert (from_lafs(to_lafs(keypoints)).response == 1).all()


def test_patches_of_kornias_own_detector_are_ours(image: np.ndarray) -> None:
    """Its frames, read by it and through `from_lafs` by us."""
    lafs, response = KF.ScaleSpaceDetector(100, ori_module=KF.LAFOrienter(19))(as_tensor(image))[:2]
    found = from_lafs(lafs, response)
    within = inside(found, image.shape[1], image.shape[0]) & (found.sigma < 10)
    assert within.sum() > 30 and len(np.unique(found.angle[within].round(1))) > 10
    theirs = KF.extract_patches_from_pyramid(as_tensor(image), lafs, 64)[0, within, 0].detach().numpy() * 255
    mine = cut_patches(image, found.select(within))
    assert np.abs(mine - theirs).mean(axis=(1, 2)).max() < 1.0  # grey levels


def test_affine_frames_keep_area_and_direction() -> None:
    laf = torch.tensor([[[[12.0, 5.0, 100.0], [12.0, 30.0, 50.0]]]])
    one = from_lafs(laf)
    assert one.sigma[0] == pytest.approx(np.sqrt(300) / 6) and one.angle[0] == pytest.approx(np.pi / 4)
    assert one.xy.tolist() == [[100.0, 50.0]]


def test_the_encoder_takes_kornias_patches_as_they_are(
    encoder: SDGMNet, image: np.ndarray, keypoints: Keypoints
) -> None:
    """Exactly: what LAFDescriptor gives is the encoder on the patches that kornia cuts."""
    few = keypoints.select(np.arange(0, len(keypoints.xy), 4))
    patches = KF.extract_patches_from_pyramid(as_tensor(image), to_lafs(few), 32)[0]
    assert patches.shape == (len(few.xy), 1, 32, 32) and patches.min() >= 0 and patches.max() <= 1
    with torch.inference_mode():
        given = KF.LAFDescriptor(encoder, patch_size=32)(as_tensor(image), to_lafs(few))
        torch.testing.assert_close(given[0], encoder(patches), rtol=0, atol=1e-6)
    np.testing.assert_allclose(given[0].numpy(), describe_patches(encoder, patches), atol=1e-4)


def test_kornia_gives_our_descriptors(encoder: SDGMNet, image: np.ndarray, keypoints: Keypoints) -> None:
    """As near as two ways to smooth allow: far nearer than any other keypoint's. The other sign of the angle is not."""
    ours = describe(image, keypoints, descriptor=encoder).descriptors

    def through_kornia(points: Keypoints) -> np.ndarray:
        with torch.inference_mode():
            return KF.LAFDescriptor(encoder, patch_size=32)(as_tensor(image), to_lafs(points))[0].numpy()

    theirs, mirrored = through_kornia(keypoints), through_kornia(keypoints._replace(angle=-keypoints.angle))
    cosine = (ours * theirs).sum(axis=1)
    assert np.median(cosine) > 0.999 and cosine.min() > 0.97
    assert np.median((ours * mirrored).sum(axis=1)) < 0.9
    assert (np.argmax(theirs @ ours.T, axis=1) == np.arange(len(ours))).mean() > 0.99


def test_bad_frames_are_said() -> None:
    with pytest.raises(InputError, match="2, 5, 2, 3"):
        from_lafs(torch.zeros(2, 5, 2, 3))
    with pytest.raises(InputError, match="responses"):
        from_lafs(torch.zeros(1, 5, 2, 3), torch.zeros(1, 4))
