"""Losses by name, as configurations and the command line give them.

A name is one of `LOSSES`; "pml:CircleLoss" for a pair-based loss of pytorch-metric-learning; or "my_loss.py:MyLoss" for a class
or function in the user's own Python file. To add a loss to the package, add its file and a line in
`LOSSES` of sdgmnet/registry.py.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sdgmnet import registry
from sdgmnet.errors import InputError
from sdgmnet.loss.pml import PMLLoss
from sdgmnet.registry import PML, load_all, own_file
from sdgmnet.storage import reason_of

LOSSES: dict[str, Callable[..., nn.Module]] = load_all(registry.LOSSES)

NEEDS = frozenset({"raw", "maps"})  # what an encoder can give a loss besides descriptors
OWN_MODULE = "_own_loss_"  # prefix of the module names under which users' files are imported


def summaries() -> dict[str, str]:
    """The losses of `LOSSES`, each with the first line of its docstring."""
    return {name: (inspect.getdoc(make) or "").partition("\n")[0] for name, make in LOSSES.items()}


def loss_defaults(name: str) -> dict[str, Any]:
    """Options of a loss in `LOSSES` and their defaults; none of a loss from elsewhere, whose code is not run for it."""
    return {key: one.default for key, one in _options_of(LOSSES[name]).items()} if name in LOSSES else {}


def _options_of(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What `--loss-options` can set. `group` is for other training loops: ours gathers the ranks' pairs itself."""
    return {key: one for key, one in inspect.signature(make).parameters.items() if key != "group"}


def loss_by_name(name: str, options: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> nn.Module:
    """Create a loss with its options. Of the run's `shared` values it gets those that are arguments of its constructor."""
    if name.startswith(PML):
        return PMLLoss(name.removeprefix(PML), **options)
    if (own := own_file(name)) is not None:
        make = _from_file(*own)
    elif name in LOSSES:
        make = LOSSES[name]
    else:
        raise InputError(f"a loss must be one of {', '.join(LOSSES)}, pml:NAME or FILE.py:NAME, not {name!r}.")
    parameters = _options_of(make)
    wanted = {key: value for key, value in (shared or {}).items() if key in parameters}
    unknown = [key for key in options if key not in parameters]
    if unknown:
        raise InputError(f"the loss {name} has no option {unknown[0]!r}: it has {', '.join(parameters) or 'none'}.")
    for key, value in options.items():
        if isinstance(parameters[key].default, bool) and not isinstance(value, bool):
            raise InputError(f"the option {key} of the loss {name} is true or false, not {value!r}.")
        if _is_number(parameters[key].default) and not _is_number(value):
            raise InputError(f"the option {key} of the loss {name} must be a number, not {value!r}.")
        if parameters[key].annotation in (int, "int") and isinstance(value, float):
            raise InputError(f"the option {key} of the loss {name} must be an integer, not {value!r}.")
    try:
        loss = make(**{**wanted, **options})
    except InputError:
        raise
    except Exception as error:  # an argument is missing or invalid, or a user's constructor fails
        raise InputError(f"the loss {name} rejects the options {dict(options)} ({reason_of(error)}).") from error
    _require_contract(name, loss)
    return loss


def _require_contract(name: str, loss: Any) -> None:
    """What training expects of a loss, see docs/guides/own_loss.md."""
    if not isinstance(loss, nn.Module):
        raise InputError(
            f"{name} gives a {type(loss).__name__}: a loss must be a torch.nn.Module, see docs/guides/own_loss.md."
        )
    parameters = inspect.signature(loss.forward).parameters
    if "progress" not in parameters and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        raise InputError(
            f"{name} does not take progress: it is called as loss(anchor, positive, progress=0.5), see docs/guides/own_loss.md."
        )
    if next(loss.parameters(), None) is not None:
        raise InputError(
            f"{name} has parameters, but only those of the encoder are trained: use buffers, or numbers as options."
        )
    unknown = set(getattr(loss, "needs", ())) - NEEDS
    if unknown:
        raise InputError(
            f"{name} needs {', '.join(sorted(unknown))}, but an encoder gives only {', '.join(sorted(NEEDS))}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _from_file(path: Path, what: str) -> Callable[..., Any]:
    if not path.is_file():
        raise InputError(f"{path} does not exist: give the Python file of a loss, as in --loss my_loss.py:MyLoss.")
    name = f"{OWN_MODULE}{path.stem}"  # cannot hide another module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up their classes there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file can raise anything
        sys.modules.pop(name, None)
        raise InputError(f"{_place_in_own_file(error) or path} fails: {type(error).__name__}: {error}.") from error
    made = getattr(module, what, None)
    if not callable(made):
        raise InputError(f"{path} has no {what}: give the class of the loss, or a function that returns the loss.")
    found: Callable[..., Any] = made
    return found


def call_loss(loss: nn.Module, anchor: Tensor, positive: Tensor, *, progress: float, **more: Any) -> Tensor:
    """`loss(anchor, positive, progress=progress, **more)`, checked to be a scalar tensor."""
    try:
        value = loss(anchor, positive, progress=progress, **more)
    except InputError:
        raise
    except Exception as error:  # a user's file can raise anything; our own losses show their traceback
        where = _place_in_own_file(error)
        if where is None:
            raise
        raise InputError(f"{where} fails: {type(error).__name__}: {error}.") from error
    if not isinstance(value, Tensor) or value.ndim != 0:
        given = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(
            f"{type(loss).__name__} returned {given}: a loss must return a scalar tensor, as from .mean()."
        )
    return value


def _place_in_own_file(error: BaseException) -> str | None:
    """File and line in a user's file where the error was raised; None where it was raised elsewhere."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [
        (frame.f_code.co_filename, line)
        for frame, line in frames
        if str(frame.f_globals.get("__name__", "")).startswith(OWN_MODULE)
    ]
    return f"{own[-1][0]}, line {own[-1][1]}" if own else None
