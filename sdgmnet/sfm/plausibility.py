"""Whether a sparse model can be what the photos show, and how it is estimated again if not.

COLMAP registers photos also in a model that has collapsed: few points, focal lengths and distortions that no lens has. The
bounds are wide. Models of ordinary photos are far inside, collapsed ones far outside of several (docs/guides/reconstruct.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MIN_POINTS_PER_PHOTO = 30  # COLMAP registers a photo by so many matches with points
MIN_SHARE_IN_TRACKS = 0.25
FOCAL_LENGTHS = (0.3, 10.0)  # times the longer side: 11 mm to 360 mm on a 36 mm film
MAX_CORNER_SHIFT = (
    0.5  # a strong wide-angle lens moves the corner of the image by a third of its distance from the centre
)
MAX_REPROJECTION_ERROR = 2.0  # pixels
MIN_SHARED_POINTS = 15  # of two photos, to be connected
TOLERATED = 0.05  # share of the photos that may be outside of the bounds
NAMED = 3  # photos in a reason


@dataclass(frozen=True)
class PhotoFacts:
    name: str
    points: int
    """Points of the model that the photo observes."""
    focal: float
    """Focal length over the longer side of the photo."""
    corner_shift: float
    """Radial distortion at the corner, k r²: by which share of its distance from the centre the lens moves it."""


@dataclass(frozen=True)
class ModelFacts:
    photos: tuple[PhotoFacts, ...]
    verified_matches: int
    """Between the photos of the model."""
    matches_in_tracks: int
    """Of these, those whose two keypoints observe the same point."""
    connected: int
    """Photos in the largest group that is connected by pairs with at least 15 common points."""
    reprojection_error: float
    """Mean, in pixels."""


def implausibilities(facts: ModelFacts) -> list[str]:
    """Why the model is implausible, one reason each; empty if it is plausible."""
    count = len(facts.photos)
    lowest, highest = FOCAL_LENGTHS
    reasons = [
        *_photos_outside(
            facts.photos,
            lambda photo: photo.points >= MIN_POINTS_PER_PHOTO,
            lambda photo: f"{photo.points} points",
            f"at least {MIN_POINTS_PER_PHOTO} per photo are expected",
        ),
        *_photos_outside(
            facts.photos,
            lambda photo: lowest <= photo.focal <= highest,
            lambda photo: f"focal length {photo.focal:.2f}",
            f"{lowest:g} to {highest:g} times the longer side are expected",
        ),
        *_photos_outside(
            facts.photos,
            lambda photo: abs(photo.corner_shift) <= MAX_CORNER_SHIFT,
            lambda photo: f"radial distortion {photo.corner_shift:.2f} at the corner",
            f"at most {MAX_CORNER_SHIFT:g} is expected",
        ),
    ]
    if facts.matches_in_tracks < MIN_SHARE_IN_TRACKS * facts.verified_matches:
        share = facts.matches_in_tracks / facts.verified_matches
        reasons.append(
            f"{100 * share:.1f} % of {facts.verified_matches} verified matches are in tracks; at least "
            f"{100 * MIN_SHARE_IN_TRACKS:.0f} % are expected"
        )
    if count - facts.connected > TOLERATED * count:
        reasons.append(
            f"{facts.connected} of {count} photos are connected by pairs with {MIN_SHARED_POINTS} or more common points"
        )
    if not facts.reprojection_error <= MAX_REPROJECTION_ERROR:
        reasons.append(
            f"the mean reprojection error is {facts.reprojection_error:.2f} px; at most {MAX_REPROJECTION_ERROR:g} px is "
            "expected"
        )
    return reasons


def _photos_outside(
    photos: Sequence[PhotoFacts],
    inside: Callable[[PhotoFacts], bool],
    shown: Callable[[PhotoFacts], str],
    expected: str,
) -> list[str]:
    outside = [photo for photo in photos if not inside(photo)]
    if len(outside) <= TOLERATED * len(photos):
        return []
    named = ", ".join(f"{photo.name} ({shown(photo)})" for photo in outside[:NAMED])
    more = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
    return [f"{len(outside)} of {len(photos)} photos: {named}{more}; {expected}"]


# What is tried next if a model is implausible

MapperName = Literal["incremental", "global"]


@dataclass(frozen=True)
class Mapper:
    """Settings of COLMAP's mappers; the defaults are their own. The global one has no initial pair."""

    refine_distortion: bool = True
    """False: radial distortion stays 0."""
    min_initial_matches: int = 100
    """Verified matches of the initial pair."""
    max_initial_error: float = 4.0
    """Of the points of the initial pair, in pixels."""


@dataclass(frozen=True)
class Attempt:
    what: str
    mapper: Mapper = field(default_factory=Mapper)
    max_ratio: float | None = None
    """Ratio test, unless a stricter one is asked for. None: as asked."""

    def ratio(self, requested: float | None) -> float | None:
        given = [ratio for ratio in (requested, self.max_ratio) if ratio is not None]
        return min(given) if given else None


NO_DISTORTION = Mapper(refine_distortion=False)
STRICT = Mapper(refine_distortion=False, min_initial_matches=200, max_initial_error=2.0)

COLMAP_DEFAULTS = (Attempt("COLMAP's defaults"),)
ATTEMPTS: dict[MapperName, tuple[Attempt, ...]] = {
    "incremental": (
        Attempt("as asked"),
        Attempt("no distortion, stricter initial pair", STRICT),
        Attempt("ratio 0.8, no distortion, stricter initial pair", STRICT, max_ratio=0.8),
    ),
    "global": (
        Attempt("as asked"),
        Attempt("no distortion", NO_DISTORTION),
        Attempt("ratio 0.8, no distortion", NO_DISTORTION, max_ratio=0.8),
    ),
}


def distinct_attempts(attempts: tuple[Attempt, ...], requested: float | None, *, ratio_test: bool) -> list[Attempt]:
    """Without attempts that repeat an earlier one because the ratio asked for is strict, or matches have no ratio."""
    distinct: dict[Any, Attempt] = {}
    for attempt in attempts:
        distinct.setdefault((attempt.mapper, attempt.ratio(requested) if ratio_test else None), attempt)
    return list(distinct.values())
