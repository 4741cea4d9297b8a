"""A loss by its name, as a configuration or a command line gives it.

A name is one of `LOSSES`; "pml:CircleLoss", a pair-based loss of pytorch-metric-learning; or "my_loss.py:MyLoss", what makes a
loss in a Python file of one's own.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.loss.cdf import CDFLoss
from sdgmnet.loss.hardnet import HardNetLoss, HardNetOriginalLoss
from sdgmnet.loss.hynet import HyNetLoss
from sdgmnet.loss.l2net import L2NetLoss
from sdgmnet.loss.modulated import exp_tl_loss, keller_loss, sface_loss
from sdgmnet.loss.pml import PMLLoss
from sdgmnet.loss.sdgm import SDGMLoss
from sdgmnet.loss.sosnet import SOSNetLoss
from sdgmnet.loss.tfeat import TFeatLoss
from sdgmnet.storage import parse_json

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "sdgm": SDGMLoss,
    "hardnet": HardNetLoss,  # as the paper's HardNet+FRN
    "hardnet-original": HardNetOriginalLoss,
    "tfeat": TFeatLoss,
    "l2net": L2NetLoss,
    "cdf": CDFLoss,
    "sosnet": SOSNetLoss,
    "hynet": HyNetLoss,
    "keller": keller_loss,
    "exp-tl": exp_tl_loss,
    "sface": sface_loss,
}


# ---- loss.calling


OWN_MODULE = "_own_loss_"  # begins the names that Python files with losses are imported under


def value_of(loss: nn.Module, anchor: Tensor, positive: Tensor, *, progress: float, **more: Any) -> Tensor:
    """`loss(anchor, positive, progress=progress, **more)`, which must be a scalar tensor."""
    try:
        value = loss(anchor, positive, progress=progress, **more)
    except InputError:
        raise
    except Exception as error:  # whatever a file of one's own does; ours may show where they fail
        where = place_in_own_file(error)
        if where is None:
            raise
        raise InputError(f"{where} fails: {type(error).__name__}: {error}.") from error
    if not isinstance(value, Tensor) or value.ndim != 0:
        given = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(f"{type(loss).__name__} returned {given}: a loss returns a scalar tensor, as by .mean().")
    return value


def place_in_own_file(error: BaseException) -> str | None:
    """File and line of the last step of a file with losses that led to the error; None where there is none."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [
        (frame.f_code.co_filename, line)
        for frame, line in frames
        if str(frame.f_globals.get("__name__", "")).startswith(OWN_MODULE)
    ]
    return f"{own[-1][0]}, line {own[-1][1]}" if own else None


# ---- loss.named


PML = "pml:"
NEEDS = frozenset({"raw", "maps"})


def own_file(name: str) -> tuple[Path, str] | None:
    """The file and what to take of it, where `name` is "FILE.py:NAME"; otherwise None."""
    path, _, what = name.rpartition(":")
    return (Path(path), what) if path.endswith(".py") and what.isidentifier() else None


def is_loss_name(name: str) -> bool:
    """Whether `name` has the form of one; whether there is such a loss, `loss_by_name` finds out."""
    return name in LOSSES or (name.startswith(PML) and name != PML) or own_file(name) is not None


def loss_defaults(name: str) -> dict[str, Any]:
    """Options of a loss in `LOSSES` and their defaults; none of a loss from elsewhere, whose code is not run for it."""
    return {key: one.default for key, one in _options_of(LOSSES[name]).items()} if name in LOSSES else {}


def _options_of(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What `--loss-options` can set. `group` is for other training loops: ours gathers the ranks' pairs itself."""
    return {key: one for key, one in inspect.signature(make).parameters.items() if key != "group"}


def loss_by_name(name: str, options: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> nn.Module:
    """Make the loss with its options. `shared` are values of the run: those that its constructor names, it is given, too."""
    if name.startswith(PML):
        return PMLLoss(name.removeprefix(PML), **options)
    if (own := own_file(name)) is not None:
        make = _from_file(*own)
    elif name in LOSSES:
        make = LOSSES[name]
    else:
        raise InputError(f"a loss is one of {', '.join(LOSSES)}, pml:NAME or FILE.py:NAME, not {name!r}.")
    parameters = _options_of(make)
    wanted = {key: value for key, value in (shared or {}).items() if key in parameters}
    unknown = [key for key in options if key not in parameters]
    if unknown:
        raise InputError(f"the loss {name} has no option {unknown[0]!r}: it has {', '.join(parameters) or 'none'}.")
    for key, value in options.items():
        if isinstance(parameters[key].default, bool) and not isinstance(value, bool):
            raise InputError(f"the option {key} of the loss {name} is true or false, not {value!r}.")
        if _is_number(parameters[key].default) and not _is_number(value):
            raise InputError(f"the option {key} of the loss {name} is a number, not {value!r}.")
        if parameters[key].annotation in (int, "int") and isinstance(value, float):
            raise InputError(f"the option {key} of the loss {name} is a whole number, not {value!r}.")
    try:
        loss = make(**{**wanted, **options})
    except InputError:
        raise
    except Exception as error:  # an argument is missing or not what it should be, or a constructor of one's own fails
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"the loss {name} cannot be made with the options {dict(options)} ({what}).") from error
    if not isinstance(loss, nn.Module):
        raise InputError(f"{name} gives a {type(loss).__name__}: a loss is a torch.nn.Module, see docs/own_loss.md.")
    if not _takes_progress(loss):
        raise InputError(
            f"{name} does not take progress: a loss is called loss(anchor, positive, progress=0.5), see docs/own_loss.md."
        )
    if next(loss.parameters(), None) is not None:
        raise InputError(
            f"{name} has parameters, which training would not change: only the encoder learns; register buffers, or take "
            "numbers as options."
        )
    more = set(getattr(loss, "needs", ())) - NEEDS
    if more:
        raise InputError(f"{name} needs {', '.join(sorted(more))}: an encoder gives {', '.join(sorted(NEEDS))}.")
    return loss


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """["margin=1", "reduction=mean"] -> {"margin": 1, "reduction": "mean"}: numbers, true, false and null are read as JSON."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in options:
            raise InputError(f"options of a loss are given once each as NAME=VALUE, not {text!r}.")
        try:
            options[name] = parse_json(value)
        except ValueError:
            options[name] = value
    return options


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _takes_progress(loss: nn.Module) -> bool:
    parameters = inspect.signature(loss.forward).parameters
    return "progress" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _from_file(path: Path, what: str) -> Callable[..., Any]:
    if not path.is_file():
        raise InputError(f"{path} does not exist: give the Python file of a loss, as in --loss my_loss.py:MyLoss.")
    name = f"{OWN_MODULE}{path.stem}"  # no other module's, so that nothing is hidden by it
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their classes up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        sys.modules.pop(name, None)
        raise InputError(f"{place_in_own_file(error) or path} fails: {type(error).__name__}: {error}.") from error
    made = getattr(module, what, None)
    if not callable(made):
        raise InputError(f"{path} has no {what}: name the class of the loss, or a function that makes it.")
    found: Callable[..., Any] = made
    return found
