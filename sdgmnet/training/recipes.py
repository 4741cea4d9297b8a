"""Named settings of a run. Whatever is typed beside `--recipe` goes before the recipe's own values."""

from dataclasses import replace
from typing import Any, NamedTuple

from sdgmnet.errors import InputError
from sdgmnet.training.config import TrainConfig


class Recipe(NamedTuple):
    summary: str
    settings: dict[str, Any]


RECIPES = {
    "paper": Recipe("the paper's settings", {}),
    "photos": Recipe(
        "patches of own photos, an hour and a half on two CPU cores; the reasons stand in docs/results.md",
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
}


def settings_of(name: str) -> TrainConfig:
    if name not in RECIPES:
        raise InputError(f"--recipe must be one of {', '.join(RECIPES)}, not {name!r}.")
    return replace(TrainConfig(), **RECIPES[name].settings)
