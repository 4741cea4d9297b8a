"""Losses by name: ours, those of pytorch-metric-learning, and those in a user's file."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sdgmnet.errors import InputError
from sdgmnet.loss import LOSSES, HardNetLoss, ModulatedLoss, TFeatLoss
from sdgmnet.loss.registry import OWN_MODULE, call_loss, loss_by_name, loss_defaults, summaries
from sdgmnet.registry import is_loss_name, own_file, parse_options

OWN = '''
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

class Mine(nn.Module):
    """The mean squared distance.

    More."""

    def __init__(self, scale: float = 1.0, decay: float = 0.5):
        super().__init__()
        self.scale, self.decay = scale, decay

    def forward(self, anchor, positive, *, progress=1.0):
        return self.scale * (anchor - positive).square().sum(1).mean()

def tuned(scale=2.0):
    return Mine(scale)

@dataclass
class Settings:
    scale: float = 4.0

def settled():
    return Mine(Settings().scale)

class Greedy(Mine):
    needs = {"gradients"}

class Demanding(Mine):
    def __init__(self, scale):
        super().__init__(scale)

class Late(nn.Module):
    def forward(self, anchor, positive):
        return (anchor - positive).square().sum()

class Learning(Mine):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

class Picky(Mine):
    def __init__(self):
        raise KeyError("never")

class Failing(Mine):
    def forward(self, anchor, positive, *, progress=1.0):
        return anchor.nonsense

class Plain(Mine):
    def forward(self, anchor, positive, *, progress=1.0):
        return 1.0

number = 5

def text():
    return "no module"
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.mark.parametrize("name", LOSSES)
def test_every_name_makes_a_loss(name: str) -> None:
    assert is_loss_name(name)
    assert isinstance(loss_by_name(name, {}), torch.nn.Module)
    assert summaries()[name].endswith(".")


def test_shared_values_reach_constructors_that_take_them() -> None:
    shared = {"decay": 0.7, "warmup": 0.2, "initial_power": None, "min_negative_angle": 0.4}
    keller = loss_by_name("keller", {}, shared)
    assert isinstance(keller, ModulatedLoss)
    assert (keller.statistics.decay, keller.warmup, keller.min_negative_angle) == (0.7, 0.2, 0.4)
    hardnet = loss_by_name("hardnet", {"margin": 0.5, "min_negative_angle": 0.3}, shared)
    assert isinstance(hardnet, HardNetLoss)
    assert (hardnet.margin, hardnet.min_negative_angle) == (0.5, 0.3)  # what is typed goes before
    assert loss_by_name("cdf", {}, shared).histogram_decay == 0.99


def test_a_loss_in_a_users_file(own: Path) -> None:
    a, p = F.normalize(torch.randn(2, 4, 8), dim=2)
    plain = loss_by_name(f"{own}:Mine", {}, {"decay": 0.9})
    assert plain.decay == 0.9
    assert loss_by_name(f"{own}:Mine", {"scale": 3})(a, p).item() == pytest.approx(3 * plain(a, p).item())
    assert loss_by_name(f"{own}:tuned", {})(a, p).item() == pytest.approx(2 * plain(a, p).item())
    assert loss_by_name(f"{own}:settled", {})(a, p).item() == pytest.approx(4 * plain(a, p).item())


@pytest.mark.parametrize(
    ("what", "named"),
    [("Nobody", "Nobody"), ("number", "number"), ("text", "str"), ("Greedy", "gradients"), ("Demanding", "'scale'"),
     ("Late", "progress"), ("Picky", "KeyError: 'never'"), ("Learning", "parameters")],
)  # fmt: skip
def test_an_invalid_loss_is_refused(own: Path, what: str, named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        loss_by_name(f"{own}:{what}", {})
    assert "own.py" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("broken", "import torch\n\nnone = 1 / 0\n", r"broken.py, line 3 fails: ZeroDivisionError"),
        ("wrong", "def (", r"wrong.py fails: SyntaxError"),
        ("gone", None, "gone.py does not exist"),
    ],
)
def test_errors_in_a_file_name_the_line(tmp_path: Path, name: str, text: str | None, named: str) -> None:
    if text is not None:
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(InputError, match=named):
        loss_by_name(f"{tmp_path}/{name}.py:Mine", {})
    assert not [module for module in sys.modules if module.endswith(name) and module.startswith(OWN_MODULE)]


def test_errors_in_a_call_name_the_line(own: Path) -> None:
    a, p = F.normalize(torch.randn(2, 4, 8), dim=2)
    line = OWN.split("return anchor.nonsense")[0].count("\n") + 1
    with pytest.raises(InputError, match=rf"own.py, line {line} fails: AttributeError: .*nonsense"):
        call_loss(loss_by_name(f"{own}:Failing", {}), a, p, progress=0.5)
    with pytest.raises(InputError, match="Plain returned a float"):
        call_loss(loss_by_name(f"{own}:Plain", {}), a, p, progress=0.5)
    with pytest.raises(TypeError):  # in a loss of ours: a fault to be seen
        call_loss(TFeatLoss(), a, p, progress=0.5, speed=3)


def test_unknown_names_and_options_are_refused() -> None:
    for name in ("magic", "pml:", "file.txt:Mine", "file.py:", "file.py:a b", ""):
        assert not is_loss_name(name)
    for name, options, named in (
        ("magic", {}, "sdgm, hardnet"),
        ("hynet", {"gamma": 1}, "'gamma'.*margin, alpha"),
        ("sosnet", {"neighbours": 2.5}, "neighbours.*2.5"),
        ("keller", {"self_weight": "sin"}, "'sin'"),
        ("hardnet", {"margin": "high"}, "margin.*'high'"),
        ("cdf", {"bins": 10**15}, "cdf"),
    ):
        with pytest.raises(InputError, match=named):
            loss_by_name(name, options)
    assert own_file("a/b.py:C") == (Path("a/b.py"), "C") and own_file("sdgm") is None


def test_options_are_read() -> None:
    read = parse_options(["margin=1.5", "k=8", "reduction=mean", "on=true", "power=null"])
    assert read == {"margin": 1.5, "k": 8, "reduction": "mean", "on": True, "power": None}
    for text in (["margin"], ["=1"], ["a b=1"], ["k=1", "k=2"]):
        with pytest.raises(InputError, match="NAME=VALUE"):
            parse_options(text)


@pytest.mark.parametrize(
    ("name", "option", "allowed", "refused"),
    [
        ("sdgm", "power_adjustment", (True, False), (1, 0.0, "false")),
        ("sdgm", "margin", (0, 0.5), (True, "0.5", None)),
        ("cdf", "bins", (2, 64), (64.0, "64")),
        ("hardnet", "mean_over", ("all",), ("half",)),
    ],
)
def test_options_have_types(name: str, option: str, allowed: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    for value in allowed:
        loss_by_name(name, {option: value})
    for value in refused:
        with pytest.raises(InputError, match=option):
            loss_by_name(name, {option: value})


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, key) for name in LOSSES for key, value in loss_defaults(name).items() if isinstance(value, float)]
    + [("sdgm", "initial_power"), ("cdf", "bins"), ("sosnet", "neighbours")],
)
def test_a_word_in_place_of_a_number_is_refused_from_python_too(name: str, option: str) -> None:
    for wrong in ("big", True, [1.0]):
        with pytest.raises(InputError, match=option):
            LOSSES[name](**{option: wrong})
