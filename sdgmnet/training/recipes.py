"""Named settings of a run. Explicit flags override the recipe.

The methods of the paper's Table 1 have two presets. `native` are the settings of the method's own paper, or of its published
code where that was read; what is from memory is marked. `sdgm` is all as in SDGMNet with only the loss changed, for a fair
comparison. No recipe of a method says how many iterations: schedules stretch to the run's. Sources: docs/protocols.md 4.
"""

from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from sdgmnet.errors import InputError, suggestion
from sdgmnet.training.config import TrainConfig

Preset = Literal["native", "sdgm"]
ANGLE, COSINE, L2 = (f"self_weight={kind}" for kind in ("angle", "cosine", "l2"))  # of the ablation
NO_POWER = "power_adjustment=false"


class Recipe(NamedTuple):
    summary: str
    settings: dict[str, Any]  # that differ from the paper's
    sdgm: dict[str, Any] | None = None  # the same of the preset sdgm, where the recipe is a method's


RECIPES = {
    "paper": Recipe("the paper's settings", {}),
    "photos": Recipe(
        "for patches of your own photos; an hour and a half on two CPU cores",
        {
            "iterations": 4000,
            "batch_size": 512,
            "learning_rate": 0.5,
            "schedule": "cosine",
            "dropout": 0.0,
            "augmentation": "none",  # patches lie as their keypoints do; turned and mirrored ones have to be learnt besides
            "balance": "scenes",
        },
    ),
    # The methods of Table 1
    "tfeat": Recipe(
        "random triplets with a margin, shallow network",
        {
            "loss": "tfeat",  # margin 2
            "encoder": "tfeat",
            "batch_size": 300,
            "learning_rate": 0.1,
            "momentum": 0.0,
            "schedule": "step",
            "drops": 29,
            "drop_factor": 0.8,
            "dropout": 0.0,
            "augmentation": "hynet",
        },
        {"loss": "tfeat", "loss_options": ("margin=1",)},  # no distance on the sphere exceeds 2
    ),
    "l2net": Recipe(
        "softmax over relative distances, compactness, intermediate maps; settings from memory, not from published code",
        {
            "loss": "l2net",
            "encoder": "l2net",
            "mean_image": True,
            "batch_size": 128,
            "learning_rate": 0.01,
            "schedule": "step",  # a tenth every 20 epochs; how many there were is not known
            "drops": 2,
            "dropout": 0.0,
            "augmentation": "hynet",
        },
        # At a learning rate of 1 the term of the maps, which FRN does not bound, kills the network in two steps.
        {"loss": "l2net", "loss_options": ("reduction=mean", "scale=0.0005")},
    ),
    "hardnet": Recipe(
        "hardest negative of the batch, margin 1",
        {
            "loss": "hardnet-original",
            "encoder": "l2net",
            "initialisation": "orthogonal",
            "learning_rate": 10.0,
            "dampening": 0.9,  # with momentum 0.9 the steps are a tenth of what they look like
            "schedule": "linear",
            "augmentation": "hardnet",
        },
        {"loss": "hardnet-original"},
    ),
    "cdfdesc": Recipe(
        "dynamic soft margin",
        {
            "loss": "cdf",
            "encoder": "l2net",
            "initialisation": "orthogonal",
            "learning_rate": 0.1,
            "schedule": "linear",
            "dropout": 0.1,
            "joint_batchnorm": True,
            "augmentation": "cdfdesc",
        },
        {"loss": "cdf"},
    ),
    "sosnet": Recipe(
        "quadratic hinge and second-order similarity; schedule and augmentation from memory",
        {
            "loss": "sosnet",
            "encoder": "l2net",
            "batch_size": 512,
            "optimizer": "adam",
            "learning_rate": 0.01,
            "weight_decay": 0.0,
            "schedule": "step",
            "drops": 1,
            "dropout": 0.1,
            "augmentation": "hynet",
        },
        {"loss": "sosnet"},
    ),
    "hardnet+frn": Recipe(
        "HardNet's loss, all else as SDGMNet: the paper's baseline",
        {"loss": "hardnet"},
        {"loss": "hardnet"},
    ),
    "hynet": Recipe(
        "hybrid similarity, regularised feature norms",
        {
            "loss": "hynet",
            "batch_size": 512,  # of the script; 1024 in the paper, recalled
            "optimizer": "adam",
            "learning_rate": 0.01,
            "weight_decay": 0.0,
            "schedule": "step",  # without a drop: constant
            "augmentation": "hynet",
        },
        # 1/Z, which its paper has and its code leaves out: SGD without it collapsed within five steps on two of three groups.
        {"loss": "hynet", "loss_options": ("reduction=mean", "normalised=true")},
    ),
    "sdgmnet": Recipe("same as paper", {}, {}),
    # The ablation of Section V-C: self weight, with and without power adjustment
    "theta+pa": Recipe("ablation: self weight of the angle, with power adjustment", {"loss_options": (ANGLE,)}),
    "theta-pa": Recipe("the same without power adjustment", {"loss_options": (ANGLE, NO_POWER)}),
    "s+pa": Recipe("ablation: self weight of the inner product", {"loss_options": (COSINE,)}),
    "s-pa": Recipe("the same without power adjustment", {"loss_options": (COSINE, NO_POWER)}),
    "l2+pa": Recipe("ablation: self weight of the L2 distance", {"loss_options": (L2,)}),
    "l2-pa": Recipe("the same without power adjustment", {"loss_options": (L2, NO_POWER)}),
    "af+pa": Recipe("ablation: auto-focus, same as paper", {}),
    "af-pa": Recipe("the same without power adjustment", {"loss_options": (NO_POWER,)}),
}


def settings_of(name: str, preset: str = "native") -> TrainConfig:
    if name not in RECIPES:
        raise InputError(f"--recipe must be one of {', '.join(RECIPES)}, not {name!r}{suggestion(name, RECIPES)}")
    if preset not in get_args(Preset):
        raise InputError(f"--preset must be one of {', '.join(get_args(Preset))}, not {preset!r}.")
    recipe = RECIPES[name]
    if preset == "sdgm" and recipe.sdgm is None:
        raise InputError(f"--preset sdgm is for the methods of Table 1, not for --recipe {name}: leave it out.")
    settings = recipe.sdgm if preset == "sdgm" and recipe.sdgm is not None else recipe.settings
    return replace(TrainConfig(), **settings)
