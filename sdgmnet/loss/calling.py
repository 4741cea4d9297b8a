"""Calling a loss that may be anyone's: what goes wrong in it, or comes out of it, is said in a sentence."""

import traceback
from typing import Any

from torch import Tensor, nn

from sdgmnet.errors import InputError

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
