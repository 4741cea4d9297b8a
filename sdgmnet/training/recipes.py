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
        "an hour or two on a CPU with patches of own photos; the reasons stand in docs/results.md",
        {"iterations": 8000, "batch_size": 256, "learning_rate": 0.3, "dropout": 0.1, "balance": "scenes"},
    ),
}


def settings_of(name: str) -> TrainConfig:
    if name not in RECIPES:
        raise InputError(f"--recipe must be one of {', '.join(RECIPES)}, not {name!r}.")
    return replace(TrainConfig(), **RECIPES[name].settings)
