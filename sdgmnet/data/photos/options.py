"""What the patches of own photos depend on."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sdgmnet.data.photos.match_rule import Rule
from sdgmnet.sfm.sparse import SparseOptions
from sdgmnet.sfm.stereo import DenseOptions


@dataclass(frozen=True)
class PhotoOptions:
    sparse: SparseOptions = field(default_factory=SparseOptions)
    dense: DenseOptions = field(default_factory=DenseOptions)
    rule: Rule = field(default_factory=Rule)
    keypoints: int = 8000
    """Of each photo, the strongest whose patches lie wholly within it."""
    smallest_scale: float = 1.6
    """Sigma in pixels below which a patch is a blow-up of hardly more than noise: 1.6 gives patches 19 px wide."""
    carried: bool = True
    """Also patches where a point is visible but no keypoint was detected: what a detector finds twice also looks alike."""
    source: Literal["geometry", "tracks"] = "geometry"
    """tracks: what SIFT matched in the sparse reconstruction, for comparison."""

    def described(self) -> dict[str, Any]:
        """Everything that the patches depend on, in a form that JSON keeps."""
        sparse = {name: value for name, value in asdict(self.sparse).items() if name != "threads"}
        common: dict[str, Any] = {"source": self.source, "sparse": sparse}
        if self.source == "tracks":
            return common
        return json.loads(
            json.dumps(
                {
                    **common,
                    "dense": asdict(self.dense),
                    "rule": asdict(self.rule),
                    "keypoints": self.keypoints,
                    "smallest_scale": self.smallest_scale,
                    "carried": self.carried,
                }
            )
        )
