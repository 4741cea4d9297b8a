"""Recipes: named settings, before which goes what is typed."""

from pathlib import Path

import pytest

from sdgmnet.cli import main
from sdgmnet.errors import InputError
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.recipes import RECIPES, settings_of


def test_the_papers_recipe_is_the_default() -> None:
    assert settings_of("paper") == TrainConfig()
    with pytest.raises(InputError, match="paper, photos"):
        settings_of("pizza")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_configuration_that_can_be(name: str) -> None:
    settings = settings_of(name)
    assert all(getattr(settings, key) == value for key, value in RECIPES[name].settings.items())


def test_what_is_typed_goes_before_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["train", "-o", str(out), "--recipe", "photos", "--iterations", "1", "--batch-size", "4", "--data", "demo"]
    assert main([*words, "--evaluation-pairs", "20"]) == 0
    config, recipe = TrainConfig.load(out / "config.json"), settings_of("photos")
    assert (config.iterations, config.batch_size) == (1, 4)
    assert (config.learning_rate, config.dropout) == (recipe.learning_rate, recipe.dropout)
    assert main(["train", "-o", str(out), "--resume", "--recipe", "photos"]) == 2
    assert "leave --recipe out" in capsys.readouterr().err


def test_an_unknown_recipe_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-o", str(tmp_path / "run"), "--recipe", "pizza"]) == 2
    assert "--recipe must be one of paper, photos" in capsys.readouterr().err
