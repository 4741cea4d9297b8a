"""What stands below tables and figures that are drawn from one run."""

from pathlib import Path

from sdgmnet.storage import read_record
from sdgmnet.training.config import TrainConfig


def caption_of_run(run: Path) -> str:
    """Data and budget of a run in a sentence, without places on this machine."""
    config, card = TrainConfig.load(run / "config.json"), run / "last.json"
    names = (
        read_record(card, {"trained_on": [str]})["trained_on"]
        if card.exists()
        else [Path(one).name for one in config.data]
    )
    loss = Path(config.loss).name + (_variant(config) if config.loss == "sdgm" else "")
    before = "" if config.init is None else f", begun with the weights {Path(config.init).name}"
    return (
        f"Run {run.resolve().name}: {config.encoder} by {loss} on {', '.join(names)}, {config.iterations} iterations{before}, "
        f"N = {config.batch_size}, seed {config.seed}."
    )


def _variant(config: TrainConfig) -> str:
    """Where SDGM's loss is not the paper's."""
    changed = [
        f"{what} {config.loss_setting(name)}"
        for name, what in (("self_weight", "self weight"), ("coupled_weight", "coupled weight"))
        if config.loss_setting(name) != TrainConfig().loss_setting(name)
    ]
    changed += [] if config.loss_setting("power_adjustment") else ["no power adjustment"]
    return f" ({', '.join(changed)})" if changed else ""


def kind_of_moments(config: TrainConfig) -> str:
    """What angles.npz holds: only SDGM's loss has running moments."""
    return "its running moments" if config.loss == "sdgm" else "the moments of these triplets"
