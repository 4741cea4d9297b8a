"""The folder of a run, and all that can be said of a run before torch is loaded and data is read."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdgmnet.data.sources import require_sources
from sdgmnet.errors import InputError
from sdgmnet.options import parameters
from sdgmnet.pretrained import ALIAS, find_weights, require_weights, shipped_names
from sdgmnet.registry import own_file
from sdgmnet.training.config import FREE_ON_RESUME, TrainConfig, differences


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("checkpoint-*.pt"))


def is_finished(out: Path, config: TrainConfig) -> bool:
    """Whether the run has made its last step and written its results."""
    newest = [path.stem for path in checkpoints(out / "checkpoints")][-1:]
    has_results = all((out / name).is_file() for name in ("results.json", "last.safetensors", "best.safetensors"))
    return has_results and newest == [f"checkpoint-{config.iterations:09d}"]


def require_inputs(config: TrainConfig, out: Path, *, resume: bool = False) -> None:
    """InputError where the folder, weights, the file of a loss or data sets are not as they must be."""
    if resume:
        saved, given = TrainConfig.load(out / "config.json"), absolute_loss(config)
        require_unchanged(saved, given, out, free=(*FREE_ON_RESUME, "threads"))  # threads: the checkpoint decides
        if is_finished(out, config):
            return
    else:
        require_new_folder(out)
    initial = None if resume else config.init
    for source in filter(None, (initial, config.teacher)):
        require_weights(find_weights(source))
    if (own := own_file(config.loss)) is not None and not own[0].is_file():
        raise InputError(f"--loss {own[0]} does not exist: give the Python file of a loss, as in my_loss.py:MyLoss.")
    require_sources(config.data, config.holdout)


def require_new_folder(out: Path) -> None:
    """A run that was killed before its configuration was written has made no step: it may be started again."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give the name of a folder.")
    if (out / "config.json").exists():
        raise InputError(f"{out} already holds a run: add --resume to continue it, or choose another -o.")
    if any(not path.stem.endswith("-000000000") for path in checkpoints(out / "checkpoints")):
        raise InputError(f"{out} already holds a run, but without its config.json: choose another -o.")


def require_unchanged(saved: TrainConfig, given: TrainConfig, out: Path, free: Collection[str]) -> None:
    """InputError for settings that differ from those of the run, except `free` ones."""
    fixed = {name: values for name, values in differences(saved, given).items() if name not in free}
    if fixed:
        settings = " and ".join(
            f"{option_of(name)} is {_shown(old)}, not {_shown(new)}" for name, (old, new) in fixed.items()
        )
        raise InputError(
            f"the run in {out} keeps its configuration: {settings}; leave {'it' if len(fixed) == 1 else 'them'} out, or "
            f"start a new run with --init {out}."
        )


def absolute_loss(config: TrainConfig) -> TrainConfig:
    """A loss of one's own is found again from any folder."""
    own = own_file(config.loss)
    return config if own is None else replace(config, loss=f"{own[0].resolve()}:{own[1]}")


def absolute_teacher(config: TrainConfig) -> TrainConfig:
    """Weights of one's own are found again from any folder; shipped ones keep their name."""
    if config.teacher is None or config.teacher in {*shipped_names(), ALIAS}:
        return config
    return replace(config, teacher=str(Path(config.teacher).resolve()))


def option_of(name: str) -> str:
    """The option that sets a field of TrainConfig, as it is typed."""
    return next(one.name for one in parameters(TrainConfig) if one.path[-1] == name)


def _shown(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return "none" if value is None else str(value) if not isinstance(value, bool) else "on" if value else "off"
