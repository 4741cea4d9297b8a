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
from sdgmnet.features.kornia import from_lafs, laf_descriptor, local_feature, to_lafs
from sdgmnet.features.patches import inside
from tests.features.samples import noise_image

IMAGE = noise_image(320, 300)
TENSOR = torch.from_numpy(IMAGE.astype(np.float32) / 255)[None, None]


@pytest.fixture(scope="module")
def keypoints() -> Keypoints:
    found = detect(IMAGE)
    return found.select(np.flatnonzero(inside(found, 320, 300))[::10])


def test_lafs_mean_to_kornia_what_they_mean_to_us_there_and_back(keypoints: Keypoints) -> None:
    lafs = to_lafs(keypoints)
    assert lafs.shape == (1, len(keypoints.xy), 2, 3) and lafs.dtype == torch.float32
    made = KF.laf_from_center_scale_ori(
        torch.from_numpy(keypoints.xy[None]).float(),
        torch.from_numpy(6 * keypoints.sigma)[None, :, None, None].float(),
        torch.from_numpy(-np.rad2deg(keypoints.angle))[None, :, None].float(),  # the other way round
    )
    torch.testing.assert_close(lafs, made, rtol=1e-4, atol=1e-3)
    for one, two in zip(keypoints, from_lafs(lafs, torch.from_numpy(keypoints.response)[None]), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)
    assert from_lafs(lafs[:, :0]).xy.shape == (0, 2)
    assert (from_lafs(lafs).response == 1).all()


def test_affine_lafs_keep_area_and_direction() -> None:
    one = from_lafs(torch.tensor([[[[12.0, 5.0, 100.0], [12.0, 30.0, 50.0]]]]))
    assert (one.sigma[0], one.angle[0]) == pytest.approx((np.sqrt(300) / 6, np.pi / 4))
    assert one.xy.tolist() == [[100.0, 50.0]]


def test_kornia_gives_our_descriptors(encoder: SDGMNet, keypoints: Keypoints) -> None:
    """As near as two ways to smooth allow: far nearer than any other keypoint's. The other sign of the angle is not."""
    ours = describe(IMAGE, keypoints, descriptor=encoder).descriptors
    mirror = keypoints._replace(angle=-keypoints.angle)
    with torch.inference_mode():
        layer = laf_descriptor(encoder)
        theirs, mirrored = (layer(TENSOR, to_lafs(points))[0].numpy() for points in (keypoints, mirror))
        patches = KF.extract_patches_from_pyramid(TENSOR, to_lafs(keypoints), 64)[0]
    np.testing.assert_allclose(theirs, describe_patches(encoder, patches), atol=1e-4)  # no scaling is missing
    cosine = (ours * theirs).sum(axis=1)
    assert np.median(cosine) > 0.9999 and cosine.min() > 0.99
    assert np.median((ours * mirrored).sum(axis=1)) < 0.9
    assert (np.argmax(theirs @ ours.T, axis=1) == np.arange(len(ours))).mean() > 0.99


@pytest.mark.parametrize(("lafs", "response"), [((2, 5, 2, 3), (2, 5)), ((1, 5, 2, 3), (1, 4))])
def test_bad_lafs_are_refused(lafs: tuple[int, ...], response: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="LAF"):
        from_lafs(torch.zeros(lafs), torch.zeros(response))


def test_local_feature_gives_our_descriptors_of_its_keypoints(encoder: SDGMNet) -> None:
    """The LAFs that kornia returns are windows of the encoder around kornia's keypoints."""
    encoder.window = 20.0
    feature = local_feature(encoder, limit=150)
    assert isinstance(feature, KF.LocalFeature) and feature.scaling_coef == pytest.approx(20 / 12)
    with torch.inference_mode():
        lafs, responses, descriptors = feature(TENSOR)
        plain, _ = feature.detector(TENSOR)
    assert lafs.shape == (1, 150, 2, 3) and responses.shape == (1, 150) and descriptors.shape == (1, 150, 128)
    filled = KF.laf_is_filled(lafs)[0]
    assert filled.sum() > 100
    found = from_lafs(lafs[:, filled], responses[:, filled], encoder.window)
    np.testing.assert_allclose(found.sigma, from_lafs(plain[:, filled], window=12).sigma, rtol=1e-5)
    within = inside(found, 320, 300)
    ours = describe(IMAGE, found.select(within), descriptor=encoder).descriptors
    theirs = descriptors[0, filled].numpy()[within]
    assert np.median((ours * theirs).sum(axis=1)) > 0.99
    assert (np.argmax(theirs @ ours.T, axis=1) == np.arange(len(ours))).mean() > 0.99
    encoder.window = 12.0


def test_local_feature_matches_a_rotated_image() -> None:
    matcher = KF.LocalFeatureMatcher(local_feature(limit=300), KF.DescriptorMatcher("smnn", 0.95))
    with torch.inference_mode():
        found = matcher({"image0": TENSOR, "image1": torch.rot90(TENSOR, 1, (2, 3))})
    x, y = found["keypoints0"].T
    wanted = torch.stack([y, TENSOR.shape[3] - 1 - x], dim=1)  # a quarter turn counter-clockwise
    assert len(x) > 100 and ((found["keypoints1"] - wanted).norm(dim=1) < 2).float().mean() > 0.95


def test_local_feature_with_another_detector(encoder: SDGMNet) -> None:
    detector = KF.ScaleSpaceDetector(40, mr_size=3.0)
    assert local_feature(encoder, detector).scaling_coef == pytest.approx(encoder.window / 6)
    several = KF.MultiResolutionDetector(KF.CornerGFTT(), 40)
    feature = local_feature(encoder, several)
    assert feature.scaling_coef == 1 and local_feature(encoder, several, scaling=0.5).scaling_coef == 0.5
    with torch.inference_mode():
        assert feature(TENSOR)[2].shape == (1, 40, 128)
    for wrong in ({"scaling": 0.0}, {"limit": 0}, {"upright": True}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            local_feature(encoder, detector, **wrong)
