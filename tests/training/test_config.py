from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sdgmnet.errors import InputError
from sdgmnet.loss import HardNetLoss, HyNetLoss, SDGMLoss
from sdgmnet.loss.orthogonal import WithOrthogonality
from sdgmnet.loss.registry import loss_defaults
from sdgmnet.storage import write_json
from sdgmnet.training.config import SDGM_OPTIONS, TrainConfig, differences, format_options
from sdgmnet.training.run import build_loss


def test_every_default() -> None:
    """Saved configurations name only what differs from these: none may change unnoticed."""
    assert asdict(TrainConfig()) == {
        "data": ("demo",), "holdout": (), "iterations": 200_000, "batch_size": 1024, "seed": 0, "encoder": "sdgmnet",
        "initialisation": "torch", "mean_image": False, "optimizer": "sgd", "learning_rate": 1.0, "schedule": "halving",
        "drops": 0, "drop_factor": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 1e-4, "dropout": 0.3,
        "augmentation": "paper", "balance": "points", "views": 0.5, "scenes_per_batch": None, "carried": True,
        "window": None, "window_jitter": 0.0, "loss": "sdgm",
        "loss_options": (), "orthogonality": 0.0, "teacher": None, "teacher_weight": 1.0, "joint_batchnorm": False,
        "init": None, "device": "auto", "threads": None, "engine": "auto",
        "recompute": False, "chunk_size": None, "evaluations": None, "evaluation_pairs": None, "checkpoint_every": None,
        "tensorboard": False, "wandb": False,
    }  # fmt: skip
    assert TrainConfig(batch_size=8, iterations=3).pairs == 24
    assert TrainConfig(batch_size=8).chunk == 8 and TrainConfig(chunk_size=3).chunk == 3
    assert TrainConfig(evaluation_pairs=7).most_evaluation_pairs == 7
    assert TrainConfig(iterations=200_000).is_paper_length and not TrainConfig(iterations=199_999).is_paper_length
    assert len(TrainConfig(iterations=199_999).evaluation_steps()) == 21
    assert TrainConfig(iterations=9, evaluations=3).evaluation_steps() == {0, 3, 6, 9}
    hynet = TrainConfig(loss="hynet", loss_options=("margin=1",))
    assert (hynet.loss_setting("margin"), hynet.sdgm_setting("margin"), hynet.loss_setting("warmup")) == (1, 0.6, 0.1)
    ours = {"margin": 0.6, "alpha": 0.9, "warmup": 0.1, "min_negative_angle": 0.6, "decay": 0.999,
            "self_weight": "auto-focus", "coupled_weight": "cdf", "power_adjustment": True}  # fmt: skip
    assert {name: TrainConfig().loss_setting(name) for name in ours} == ours


LARGEST = 10**12
LIMITS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # setting -> allowed at its limits, refused beyond
    "iterations": ((1, LARGEST), (0, LARGEST + 1)),
    "batch_size": ((2, LARGEST), (1, LARGEST + 1)),
    "threads": ((1,), (0,)),
    "chunk_size": ((1,), (0,)),
    "evaluations": ((1,), (0,)),
    "evaluation_pairs": ((1,), (0,)),
    "checkpoint_every": ((1,), (0,)),
    "seed": ((0, 2**63 - 1), (-1, 2**63)),
    "learning_rate": ((1e-9,), (0.0, -1.0, float("nan"), float("inf"))),
    "momentum": ((0.0, 0.999), (-0.1, 1.0)),
    "dampening": ((0.0, 0.999), (-0.1, 1.0)),
    "drops": ((0, 5), (-1,)),
    "drop_factor": ((0.01, 1.0), (0.0, 1.01)),
    "orthogonality": ((0.0, 2.0), (-0.1,)),
    "views": ((0.0, 1.0), (-0.1, 1.01)),
    "scenes_per_batch": ((1, 100), (0,)),
    "window_jitter": ((0.0, 0.5), (-0.1, 0.51)),
    "window": ((1.0, 100.0), (0.9, 101.0)),
    "weight_decay": ((0.0, 0.5), (-1e-4,)),
}


@pytest.mark.parametrize("field", LIMITS)
def test_settings_at_their_limits(field: str) -> None:
    allowed, refused = LIMITS[field]
    for value in allowed:
        assert getattr(TrainConfig(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in refused:
        with pytest.raises(InputError, match=f"--{field.replace('_', '-')}"):
            TrainConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "fits"),
    [
        ("iterations", 5, True), ("iterations", True, False), ("iterations", 5.0, False), ("iterations", None, False),
        ("learning_rate", 2, True), ("learning_rate", True, False), ("learning_rate", LARGEST, True),
        ("learning_rate", LARGEST + 1, False), ("learning_rate", "1", False), ("threads", None, True),
        ("threads", 2, True), ("threads", False, False), ("threads", "2", False), ("init", "sdgmnet", True),
        ("init", None, True), ("init", 3, False), ("data", ["a", "b"], True), ("data", ["a", 1], False),
        ("data", "a", False), ("recompute", True, True), ("recompute", 1, False), ("engine", "eager", True),
        ("engine", "magic", False), ("engine", ["eager"], False), ("loss", 3, False), ("loss_options", "margin=1", False),
    ],
)  # fmt: skip
def test_types_of_saved_settings(field: str, value: Any, fits: bool) -> None:
    if fits:
        made = getattr(TrainConfig.from_dict({field: value}, "config.json"), field)
        assert made == (tuple(value) if isinstance(value, list) else value)
    else:
        with pytest.raises(InputError, match=f"config.json.*{field}"):
            TrainConfig.from_dict({field: value}, "config.json")


def test_config_of_another_version_is_refused() -> None:
    with pytest.raises(InputError, match="config.json"):
        TrainConfig.from_dict({"colour": 1}, "config.json")


def test_learning_rate_is_halved_after_each_tenth() -> None:
    config = TrainConfig()
    steps = (0, 19_999, 20_000, 39_999, 180_000, 199_999)
    assert [config.learning_rate_at(step) for step in steps] == [1, 1, 0.5, 0.5, 2**-9, 2**-9]
    short = TrainConfig(iterations=7)
    assert short.learning_rate_at(0) == 1
    assert short.learning_rate_at(6) == 2**-8  # 6/7 of the run is past 80 %


def test_other_schedules_end_at_zero() -> None:
    linear, cosine = (TrainConfig(iterations=100, learning_rate=2.0, schedule=name) for name in ("linear", "cosine"))  # type: ignore[arg-type]
    assert [linear.learning_rate_at(step) for step in (0, 25, 50, 100)] == pytest.approx([2, 1.5, 1, 0])
    assert [cosine.learning_rate_at(step) for step in (0, 50, 100)] == pytest.approx([2, 1, 0])
    assert cosine.learning_rate_at(25) == pytest.approx(1 + 2**-0.5)


@pytest.mark.parametrize(("iterations", "decay"), [(200_000, 0.999), (400_000, 0.999), (10_000, 0.98), (500, 0.9)])
def test_decay_keeps_the_papers_ratio(iterations: int, decay: float) -> None:
    assert TrainConfig(iterations=iterations).loss_setting("decay") == pytest.approx(decay)
    assert TrainConfig(iterations=iterations, loss_options=("decay=0.5",)).loss_setting("decay") == 0.5


def test_evaluations_and_epochs() -> None:
    paper, small = TrainConfig(), TrainConfig(iterations=1000)
    assert len(paper.evaluation_steps()) == 201 and paper.most_evaluation_pairs is None
    assert small.evaluation_steps() == {50 * k for k in range(21)} and small.most_evaluation_pairs == 5000
    assert TrainConfig(iterations=3).evaluation_steps() == {0, 1, 2, 3}
    assert sum(paper.epoch_ends(step) for step in range(1, 200_001)) == 200
    assert paper.epoch_ends(1000) and not paper.epoch_ends(999)
    assert all(TrainConfig(iterations=50).epoch_ends(step) for step in range(1, 51))


def test_saved_and_loaded(tmp_path: Path) -> None:
    config = TrainConfig(data=("a", "b"), holdout=("b",), iterations=5, init=None, loss_options=("decay=0.5",))
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json") == config
    assert differences(config, replace(config, iterations=6)) == {"iterations": (5, 6)}


def test_step_schedule_drops_at_equal_intervals() -> None:
    config = TrainConfig(iterations=90, learning_rate=1.0, schedule="step", drops=2, drop_factor=0.1)
    rates = [config.learning_rate_at(step) for step in (0, 29, 30, 59, 60, 89)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    constant = TrainConfig(iterations=90, learning_rate=0.01, schedule="step")
    assert {constant.learning_rate_at(step) for step in range(90)} == {0.01}


def test_a_configuration_from_before_the_other_methods_loads(tmp_path: Path) -> None:
    """Only what runs were saved with then; all else is the default."""
    (tmp_path / "config.json").write_text('{"data": ["demo"], "iterations": 5, "batch_size": 8, "loss": "hardnet"}')
    config = TrainConfig.load(tmp_path / "config.json")
    assert config == TrainConfig(iterations=5, batch_size=8, loss="hardnet")
    assert (config.encoder, config.optimizer, config.dampening, config.loss_options) == ("sdgmnet", "sgd", 0.0, ())
    assert isinstance(build_loss(config), HardNetLoss)


def test_former_settings_of_sdgm_become_loss_options(tmp_path: Path) -> None:
    """Runs saved before SDGM's options were loss options still open and resume."""
    former = {
        "margin": 0.7,
        "alpha": 0.9,
        "decay": 0.999,
        "self_weight": "l2",
        "power_adjustment": False,
        "warmup": 0.1,
    }
    write_json(tmp_path / "config.json", {"iterations": 5, **former})
    config = TrainConfig.load(tmp_path / "config.json")
    assert config.loss_options == ("margin=0.7", "decay=0.999", "self_weight=l2", "power_adjustment=false")
    loss = build_loss(config)
    assert isinstance(loss, SDGMLoss) and (loss.margin, loss.self_weight, loss.alpha) == (0.7, "l2", 1.0)
    write_json(tmp_path / "config.json", {"loss": "hardnet", "min_negative_angle": 0.3, "warmup": 0.2, "decay": None})
    assert TrainConfig.load(tmp_path / "config.json").loss_options == ("min_negative_angle=0.3",)


def test_losses_and_their_options_are_kept(tmp_path: Path) -> None:
    config = TrainConfig(loss="hynet", loss_options=("margin=1", "reduction=mean"), orthogonality=0.5)
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json") == config
    loss = build_loss(config)
    assert isinstance(loss, WithOrthogonality) and isinstance(loss.loss, HyNetLoss)
    assert (loss.weight, loss.loss.margin, loss.loss.reduction) == (0.5, 1, "mean")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "magic"}, "--loss.*sdgm.*pml:NAME"),
        ({"loss_options": ("margin=1",)}, "margin"),
        ({"loss_options": ("self_weight=magic",)}, "self_weight"),
        ({"loss_options": ("power_adjustment=1",)}, "power_adjustment.*sdgm"),
        ({"loss_options": ("group=world",)}, "'group'"),
        ({"loss": "hynet", "loss_options": ("margin",)}, "NAME=VALUE"),
        ({"loss": "keller", "loss_options": ("self_weight=l2",)}, "self weight"),
        ({"loss": "hardnet", "loss_options": ("power_adjustment=false",)}, "power_adjustment"),
        ({"encoder": "hynet"}, "--encoder"),
        ({"optimizer": "lion"}, "--optimizer"),
        ({"initialisation": "zero"}, "--initialisation"),
        ({"engine": "magic"}, "--engine"),
        ({"augmentation": "storng"}, "--augmentation"),
        ({"mean_image": True}, "--mean-image.*l2net"),
        ({"encoder": "l2net", "chunk_size": 64}, "--chunk-size.*l2net"),
        ({"encoder": "l2net", "recompute": True}, "--recompute.*l2net"),
        ({"encoder": "tfeat", "loss": "tfeat"}, "--dropout.*tfeat"),
        ({"encoder": "tfeat", "dropout": 0.0}, "--loss.*tfeat"),
        ({"encoder": "tfeat", "dropout": 0.0, "loss": "tfeat", "orthogonality": 1.0}, "--orthogonality"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig(**fields)


def test_help_has_the_defaults_of_the_papers_loss() -> None:
    assert ", ".join(format_options(loss_defaults("sdgm"))) == SDGM_OPTIONS
