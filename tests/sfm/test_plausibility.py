"""Bounds between models of ordinary photos and collapsed ones."""

from dataclasses import replace

import pytest

from sdgmnet.sfm.plausibility import ModelFacts, PhotoFacts, implausibilities

PHOTO = PhotoFacts("00.jpg", points=400, focal=1.2, corner_shift=-0.03)
PHOTOS = tuple(replace(PHOTO, name=f"{number:02}.jpg") for number in range(10))
GOOD = ModelFacts(PHOTOS, verified_matches=9000, matches_in_tracks=6000, connected=10, reprojection_error=0.6)


def with_odd(count: int, **odd: float) -> ModelFacts:
    return replace(GOOD, photos=(*(replace(photo, **odd) for photo in PHOTOS[:count]), *PHOTOS[count:]))


def test_an_ordinary_model_is_plausible() -> None:
    assert implausibilities(GOOD) == []


def test_the_collapsed_model_of_ten_registered_photos() -> None:
    """42 points with 124 observations from 25 374 verified matches, radial distortions of -5.2 and -2.2."""
    photos = tuple(replace(photo, points=12) for photo in PHOTOS)
    photos = (replace(photos[0], corner_shift=-5.2), replace(photos[1], corner_shift=-2.2), *photos[2:])
    reasons = implausibilities(replace(GOOD, photos=photos, verified_matches=25374, matches_in_tracks=124, connected=4))
    assert len(reasons) == 4
    assert all(
        any(word in reason for reason in reasons) for word in ("00.jpg (12 points)", "25374", "4 of 10", "-5.20")
    )


@pytest.mark.parametrize(
    "odd",
    [{"points": 29}, {"focal": 0.29}, {"focal": 10.1}, {"focal": float("nan")}, {"corner_shift": -0.51}, {"corner_shift": 1}],
)  # fmt: skip
def test_a_photo_outside_of_a_bound_is_named(odd: dict[str, float]) -> None:
    [reason] = implausibilities(with_odd(1, **odd))
    assert "1 of 10 photos" in reason and "00.jpg" in reason
    assert "and 2 more" in implausibilities(with_odd(5, **odd))[0]


@pytest.mark.parametrize(
    "at_the_bound",
    [{"points": 30}, {"focal": 0.3}, {"focal": 10.0}, {"corner_shift": -0.5}, {"corner_shift": 0.5}],
)
def test_bounds_are_inside(at_the_bound: dict[str, float]) -> None:
    assert implausibilities(with_odd(10, **at_the_bound)) == []


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"matches_in_tracks": 2249}, "25.0 % of 9000"),
        ({"connected": 9}, "9 of 10"),
        ({"reprojection_error": 2.01}, "2.01 px"),
        ({"reprojection_error": float("nan")}, "nan px"),
    ],
)
def test_each_fact_of_the_whole_model(changed: dict[str, float], shown: str) -> None:
    [reason] = implausibilities(replace(GOOD, **changed))  # type: ignore[arg-type]
    assert shown in reason


def test_one_odd_photo_in_twenty_is_tolerated() -> None:
    photos = (*PHOTOS, *(replace(photo, name=f"1{photo.name}") for photo in PHOTOS))
    one = replace(GOOD, photos=(replace(photos[0], points=3), *photos[1:]), connected=19)
    assert implausibilities(one) == []
    assert implausibilities(replace(one, connected=18)) != []
