"""An extractor for hloc: `register()`, then the configuration `CONFIGURATION`, or the name "sdgmnet" in one of your own.

hloc finds extractors as modules of `hloc.extractors`. Its conventions: pixel centres at integers, `oris` clockwise in degrees,
`scales` sigma, descriptors (D, N).
"""

import sys
from types import ModuleType
from typing import Any

from sdgmnet.errors import InputError

NAME = "sdgmnet"
MODULE = f"hloc.extractors.{NAME}"
CONFIGURATION = {  # for hloc.extract_features.main, which returns early if the output exists
    "output": "feats-sdgmnet-n4096-r1600",
    "model": {"name": NAME, "max_keypoints": 4096},
    "preprocessing": {"grayscale": True, "resize_max": 1600},
}


def register() -> dict[str, Any]:
    """Add the extractor to hloc, and `CONFIGURATION` to its configurations; returns that configuration.

    The options of the model are `weights`, a shipped name or a path, and `max_keypoints`, -1 for all.
    """
    import torch

    try:
        from hloc import extract_features
        from hloc.utils.base_model import BaseModel
    except ImportError as error:
        raise InputError(f"hloc is not installed ({error}): clone it and run pip install -e in the clone.") from error

    from sdgmnet.encoders import load_encoder
    from sdgmnet.features.describe import describe_image, descriptor_from_encoder
    from sdgmnet.features.h5 import features_to_arrays

    class SDGMNetFeatures(BaseModel):
        default_conf = {"weights": NAME, "max_keypoints": -1}  # noqa: RUF012
        required_inputs = ["image"]  # noqa: RUF012
        detection_noise = 1.0

        def _init(self, conf: dict[str, Any]) -> None:
            self.descriptor = descriptor_from_encoder(load_encoder(conf["weights"])[0])

        def _forward(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            limit = self.conf["max_keypoints"]
            image = data["image"].clamp(0, 1)  # hloc's resizing may leave rounding errors
            features = describe_image(
                image, descriptor=self.descriptor, limit=None if limit == -1 else limit, size=None
            )
            arrays = features_to_arrays(features)
            del arrays["image_size"]  # hloc adds its own, of the image before resizing
            return {name: torch.from_numpy(array)[None] for name, array in arrays.items()}

    SDGMNetFeatures.__module__ = MODULE  # hloc takes the one class that is defined in the module
    module = ModuleType(MODULE)
    module.SDGMNetFeatures = SDGMNetFeatures  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
    extract_features.confs[NAME] = CONFIGURATION
    return CONFIGURATION
