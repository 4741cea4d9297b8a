"""SDGMNet: local image descriptors to use, train and evaluate."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sdgmnet.version import __version__

if TYPE_CHECKING:
    from sdgmnet.data.patchset import PatchSet
    from sdgmnet.descriptors import describe
    from sdgmnet.encoders import SDGMNet
    from sdgmnet.engine import describe_patches
    from sdgmnet.features.match import match
    from sdgmnet.loss.sdgm import SDGMLoss
    from sdgmnet.metrics import fpr_at_recall

__all__ = ["PatchSet", "SDGMLoss", "SDGMNet", "__version__", "describe", "describe_patches", "fpr_at_recall", "match"]

# Imported on first access: torch takes seconds to load, and neither --help nor the COLMAP steps need it.
_PLACES = {
    "PatchSet": "sdgmnet.data.patchset",
    "SDGMLoss": "sdgmnet.loss.sdgm",
    "SDGMNet": "sdgmnet.encoders",
    "describe": "sdgmnet.descriptors",
    "describe_patches": "sdgmnet.engine",
    "fpr_at_recall": "sdgmnet.metrics",
    "match": "sdgmnet.features.match",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'sdgmnet' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
