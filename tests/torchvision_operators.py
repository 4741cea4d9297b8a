"""Lets torchvision be imported where its compiled library does not load: the index's CUDA build next to a CPU build of torch.

`pytest -p tests.torchvision_operators` declares the operators that the import asks for. They do not run.
"""

import sys

import torch

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

try:
    import torchvision  # noqa: F401
except ModuleNotFoundError:  # not installed: hloc needs none
    pass
except RuntimeError:  # operator torchvision::nms does not exist
    for name in [one for one in sys.modules if one.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in OPERATORS:
        library.define(operator)
