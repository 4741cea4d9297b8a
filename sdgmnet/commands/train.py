"""`sdgmnet train`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from sdgmnet.errors import InputError
from sdgmnet.options import Flag, Option, Out
from sdgmnet.registry import own_file, parse_options
from sdgmnet.report import STDERR, print_aside
from sdgmnet.training.config import TrainConfig, format_options
from sdgmnet.training.folder import is_finished, require_inputs
from sdgmnet.training.recipes import RECIPES, Preset, settings_of

LOADING = "Loading torch and the data ..."


@dataclass(frozen=True)
class TrainArguments:
    """Train a descriptor on matching pairs of patches (Algorithm 1 of the paper). Defaults are the paper's settings.

    A run is a folder: config.json, log.jsonl, checkpoints/, best.safetensors, last.safetensors, results.json and plots.
    Ctrl-C stops the run, --resume continues it. The result is bit-identical to that of an uninterrupted run.

    The paper's full run on Liberty:

        sdgmnet train --data ubc --holdout notredame yosemite -o runs/liberty

    A small run, minutes on a laptop:

        sdgmnet train --data demo --iterations 1000 --batch-size 64 -o runs/small

    Another method of the paper's Table 1, with the settings of its own paper, or with only its loss and SDGMNet's settings:

        sdgmnet train --recipe hynet --data ubc --holdout notredame yosemite -o runs/hynet
        sdgmnet train --recipe hynet --preset sdgm --data ubc --holdout notredame yosemite -o runs/hynet-loss

    Other values of margin and attenuation of SDGM's loss:

        sdgmnet train --loss-options margin=0.7 alpha=1 --data ubc --holdout notredame yosemite -o runs/margin

    Patches of your own photos (sdgmnet data photos), one to two hours on a CPU:

        sdgmnet train --recipe photos --data my_patches --holdout church -o runs/mine

    Several processes that share each batch (docs/guides/distributed.md):

        torchrun --nproc-per-node 4 -m sdgmnet train --data ubc --holdout notredame yosemite -o runs/liberty
    """

    out: Out
    """Folder of the run."""
    resume: Flag = False
    """Continue the run in --out with its saved configuration."""
    recipe: Annotated[
        str,
        Option(
            help="Named settings to start from; explicit flags override the recipe. "
            + " ".join(f"{name}: {recipe.summary}." for name, recipe in RECIPES.items())
        ),
    ] = "paper"
    preset: Preset = "native"
    """For methods of Table 1. native: settings of the method's own paper. sdgm: SDGMNet's settings with the method's loss."""
    config: TrainConfig = field(default_factory=TrainConfig)

    @staticmethod
    def made_from(given: Mapping[str, Any]) -> "TrainArguments":
        """The recipe, or the run to resume, gives the values of the options that are not given."""
        if not given.get("resume") and not given.get("data"):
            raise InputError("--data is missing: give PatchSets or PhotoTour; --data demo is a small set to try.")
        default = _saved_run(given) if given.get("resume") else _recipe(given)
        settings = {name: value for name, value in given.items() if name in TrainConfig.__dataclass_fields__}
        config = replace(default, **_override_options(settings, default))
        others = {name: value for name, value in given.items() if name not in settings}
        return TrainArguments(**others, config=config)


def main(arguments: TrainArguments) -> None:
    config, out = arguments.config, arguments.out
    finished = False
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"  # torchrun starts a failed run again
    if is_alone and is_first:  # several ranks check together, once they have found each other
        require_inputs(config, out, resume=arguments.resume)
        finished = arguments.resume and is_finished(out, config)
        print_aside(
            f"{out} is finished ({config.iterations} of {config.iterations} iterations)." if finished else LOADING
        )
    if finished and (out / "training.png").exists():
        return
    from sdgmnet.distributed import is_rank_zero_process
    from sdgmnet.training.fit import train

    if not finished:
        train(config, out, resume=arguments.resume, console=STDERR)
    if is_rank_zero_process():
        draw(config, out)


def draw(config: TrainConfig, out: Path) -> None:
    from sdgmnet.plots.patches import draw_triplets
    from sdgmnet.plots.training import draw_fig2, draw_training
    from sdgmnet.training.triplets import TRIPLETS

    if config.loss == "sdgm":
        settings = (config.loss_setting(name) for name in ("margin", "self_weight", "coupled_weight"))
        draw_fig2(out / "angles.npz", out / "fig2.png", *settings)
    draw_training(out / "log.jsonl", out / "training.png")
    if (out / TRIPLETS).exists():  # the run has a held-out set
        draw_triplets(out / TRIPLETS, out / "triplets.png")


def _recipe(given: Mapping[str, Any]) -> TrainConfig:
    config = settings_of(given.get("recipe", "paper"), given.get("preset", "native"))
    if given.get("loss", config.loss) != config.loss:  # options of the recipe's loss are not those of another
        config = replace(config, loss=given["loss"], loss_options=())
    return config


def _saved_run(given: Mapping[str, Any]) -> TrainConfig:
    """The saved configuration, so that only explicit flags can differ from it."""
    for name in ("recipe", "preset"):
        if name in given:
            raise InputError(f"a resumed run keeps its configuration: leave --{name} out.")
    out = given["out"]
    if not (out / "config.json").exists():
        raise InputError(f"{out} has no run to resume (no config.json): check -o, or start a new run without --resume.")
    config = TrainConfig.load(out / "config.json")
    if own_file(config.loss) is not None and "loss" not in given:  # a folder from others must not run code
        raise InputError(f"the run's loss is a Python file; to run it, name it again: --resume --loss {config.loss}")
    return config


def _override_options(settings: dict[str, Any], default: TrainConfig) -> dict[str, Any]:
    """Explicit loss options override those of the recipe or saved run by name; the others stay."""
    if settings.get("loss", default.loss) != default.loss or "loss_options" not in settings:
        return settings
    options = {**parse_options(default.loss_options), **parse_options(settings["loss_options"])}
    return {**settings, "loss_options": format_options(options)}
