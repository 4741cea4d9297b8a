"""Recipes: named settings, before which goes what is typed; the methods of Table 1 by their own settings and by SDGMNet's."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sources import Sources
from sdgmnet.encoders import ENCODERS, L2Net
from sdgmnet.engine import choose_engine, halve
from sdgmnet.errors import InputError
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train
from sdgmnet.training.log import read_log
from sdgmnet.training.recipes import RECIPES, settings_of

METHODS = ("tfeat", "l2net", "hardnet", "cdfdesc", "sosnet", "hardnet+frn", "hynet", "sdgmnet")

# docs/protocols.md 1.5 and 4: which patches are turned and mirrored as which method does
AUGMENTATIONS = {"tfeat": "hynet", "l2net": "hynet", "hardnet": "hardnet", "cdfdesc": "cdfdesc", "sosnet": "hynet",
                 "hardnet+frn": "paper", "hynet": "hynet", "sdgmnet": "paper"}  # fmt: skip
# docs/protocols.md 4: encoder, loss, optimiser, learning rate, momentum, dampening, weight decay, batch, dropout
NATIVE = {
    "tfeat": ("tfeat", "tfeat", "sgd", 0.1, 0.0, 0.0, 1e-4, 300, 0.0),
    "l2net": ("l2net", "l2net", "sgd", 0.01, 0.9, 0.0, 1e-4, 128, 0.0),
    "hardnet": ("l2net", "hardnet-original", "sgd", 10.0, 0.9, 0.9, 1e-4, 1024, 0.3),
    "cdfdesc": ("l2net", "cdf", "sgd", 0.1, 0.9, 0.0, 1e-4, 1024, 0.1),
    "sosnet": ("l2net", "sosnet", "adam", 0.01, 0.9, 0.0, 0.0, 512, 0.1),
    "hardnet+frn": ("sdgmnet", "hardnet", "sgd", 1.0, 0.9, 0.0, 1e-4, 1024, 0.3),
    "hynet": ("sdgmnet", "hynet", "adam", 0.01, 0.9, 0.0, 0.0, 512, 0.3),
    "sdgmnet": ("sdgmnet", "sdgm", "sgd", 1.0, 0.9, 0.0, 1e-4, 1024, 0.3),
}
# The learning rate as a share of the first, after so many hundredths of the run
RATES = {
    "tfeat": {0: 1, 3: 1, 4: 0.8, 99: 0.8**29},
    "l2net": {0: 1, 33: 1, 34: 0.1, 67: 0.01, 99: 0.01},
    "hardnet": {0: 1, 25: 0.75, 90: 0.1},
    "cdfdesc": {0: 1, 25: 0.75, 90: 0.1},
    "sosnet": {0: 1, 49: 1, 50: 0.1, 99: 0.1},
    "hynet": {0: 1, 99: 1},
    "hardnet+frn": {0: 1, 10: 0.5, 99: 2**-9},
    "sdgmnet": {0: 1, 10: 0.5, 99: 2**-9},
}


def test_the_papers_recipe_is_the_default() -> None:
    assert settings_of("paper") == settings_of("sdgmnet") == settings_of("af+pa") == TrainConfig()
    with pytest.raises(InputError, match="paper, photos"):
        settings_of("pizza")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_configuration_that_can_be(name: str) -> None:
    settings = settings_of(name)
    assert all(getattr(settings, key) == value for key, value in RECIPES[name].settings.items())


@pytest.mark.parametrize("name", METHODS)
def test_native_settings_are_those_of_the_methods_paper(name: str) -> None:
    c = settings_of(name)
    assert (c.encoder, c.loss, c.optimizer, c.learning_rate, c.momentum, c.dampening, c.weight_decay, c.batch_size,
            c.dropout) == NATIVE[name]  # fmt: skip
    assert c.augmentation == AUGMENTATIONS[name] and c.loss_options == () and c.orthogonality == 0
    assert c.joint_batchnorm is (name == "cdfdesc") and c.mean_image is (name == "l2net")
    assert c.initialisation == ("orthogonal" if name in ("hardnet", "cdfdesc") else "torch")
    for iterations in (100, 200_000):  # stretched to the run's length
        stretched = replace(c, iterations=iterations)
        for share, rate in RATES[name].items():
            step = share * iterations // 100
            assert stretched.learning_rate_at(step) == pytest.approx(rate * c.learning_rate), (share, iterations)


@pytest.mark.parametrize("name", METHODS)
def test_the_preset_sdgm_changes_nothing_but_the_loss(name: str) -> None:
    ours, theirs = asdict(TrainConfig()), asdict(settings_of(name, "sdgm"))
    assert {key for key in ours if ours[key] != theirs[key]} <= {"loss", "loss_options"}
    assert theirs["loss"] == NATIVE[name][1]


@pytest.mark.parametrize(("name", "weight"), [("theta", "angle"), ("s", "cosine"), ("l2", "l2"), ("af", "auto-focus")])
def test_the_ablation_is_self_weight_by_power_adjustment(name: str, weight: str) -> None:
    for sign, adjusted in (("+", True), ("-", False)):
        config = settings_of(f"{name}{sign}pa")
        assert replace(config, loss_options=()) == TrainConfig()
        assert config.loss_setting("self_weight") == weight
        assert config.loss_setting("power_adjustment") is adjusted


def test_presets_are_the_methods() -> None:
    assert {name for name, recipe in RECIPES.items() if recipe.sdgm is not None} == set(METHODS)
    with pytest.raises(InputError, match="--preset sdgm.*photos"):
        settings_of("photos", "sdgm")
    with pytest.raises(InputError, match="--preset.*native, sdgm"):
        settings_of("hynet", "fair")


SMALL: dict[str, Any] = {"iterations": 6, "batch_size": 12, "evaluations": 1, "evaluation_pairs": 60, "threads": 1}


@pytest.mark.parametrize("preset", ["native", pytest.param("sdgm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains(name: str, preset: str, blobs: PatchSet, other_blobs: PatchSet, tmp_path: Path) -> None:
    config = replace(settings_of(name, preset), **SMALL)
    results = train(config, tmp_path / "run", sources=Sources([blobs], [other_blobs]), console=Console(quiet=True))
    assert results["fpr95_last"]["mean"] <= 1
    losses = [line["loss"] for line in read_log(tmp_path / "run/log.jsonl", "epoch")]
    assert len(losses) == 6 and len(set(losses)) == 6
    if config.mean_image:
        encoder = L2Net.from_pretrained(tmp_path / "run/last.safetensors")
        expected = halve(torch.from_numpy(blobs.patches.mean(axis=0, keepdims=True)))[0] / 255
        assert torch.allclose(encoder.mean_image.double(), expected, atol=1e-6)
    saved = TrainConfig.load(tmp_path / "run/config.json")
    assert saved.engine == choose_engine("auto", ENCODERS[config.encoder]())


def test_what_is_typed_goes_before_the_recipe(
    tmp_path: Path, blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    out, data = tmp_path / "run", str(tmp_path / "set")
    blobs.save(data)
    words = ["train", "-o", str(out), "--recipe", "photos", "--iterations", "1", "--batch-size", "4", "--data", data]
    assert main([*words, "--evaluation-pairs", "20"]) == 0
    config, recipe = TrainConfig.load(out / "config.json"), settings_of("photos")
    assert (config.iterations, config.batch_size) == (1, 4)
    assert (config.learning_rate, config.dropout) == (recipe.learning_rate, recipe.dropout)
    for words in (["--recipe", "photos"], ["--preset", "native"]):
        assert main(["train", "-o", str(out), "--resume", *words]) == 2
        assert f"leave {words[0]} out" in capsys.readouterr().err


def test_a_methods_recipe_on_the_command_line(tmp_path: Path, blobs: PatchSet) -> None:
    blobs.save(tmp_path / "set")
    words = ["train", "--data", str(tmp_path / "set"), "--iterations", "2", "--batch-size", "8", "--threads", "1"]
    assert main([*words, "--recipe", "sosnet", "-o", str(tmp_path / "native")]) == 0
    assert main([*words, "--recipe=sosnet", "--preset=sdgm", "-o", str(tmp_path / "sdgm")]) == 0
    native, sdgm = (TrainConfig.load(tmp_path / name / "config.json") for name in ("native", "sdgm"))
    assert (native.encoder, native.optimizer, native.loss) == ("l2net", "adam", "sosnet")
    assert (sdgm.encoder, sdgm.optimizer, sdgm.loss) == ("sdgmnet", "sgd", "sosnet")
