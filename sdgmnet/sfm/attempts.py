"""How a model is estimated, and what is tried next if it is implausible."""

from dataclasses import dataclass, field
from typing import Any, Literal

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
