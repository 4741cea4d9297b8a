"""`sdgmnet train`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from sdgmnet.distributed import is_rank_zero_process
from sdgmnet.errors import InputError
from sdgmnet.loss.registry import own_file, parse_options
from sdgmnet.plots import draw_fig2, draw_training
from sdgmnet.training.config import TrainConfig, format_options
from sdgmnet.training.fit import train
from sdgmnet.training.recipes import RECIPES, Preset, settings_of


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

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder of the run."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Continue the run in --out with its saved configuration."""
    recipe: Annotated[
        str,
        tyro.conf.arg(
            help="Named settings to start from; explicit flags override the recipe. "
            + " ".join(f"{name}: {recipe.summary}." for name, recipe in RECIPES.items())
        ),
    ] = "paper"
    preset: Preset = "native"
    """For methods of Table 1. native: settings of the method's own paper. sdgm: SDGMNet's settings with the method's loss."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)


def main(words: list[str]) -> None:
    default = _saved_run(words) if "--resume" in words else _recipe(words)
    arguments = tyro.cli(TrainArguments, prog="sdgmnet train", args=words, default=default)
    config = _override_options(arguments.config, default.config)
    train(config, arguments.out, resume=arguments.resume, console=Console(stderr=True))
    if not is_rank_zero_process():
        return
    draw_training(arguments.out / "log.jsonl", arguments.out / "training.png")
    if config.loss == "sdgm":
        settings = (config.loss_setting(name) for name in ("margin", "self_weight", "coupled_weight"))
        draw_fig2(arguments.out / "angles.npz", arguments.out / "fig2.png", *settings)


def _recipe(words: list[str]) -> TrainArguments:
    """The recipe gives the defaults of all other options."""
    recipe, preset = _typed(words, "--recipe"), _typed(words, "--preset")
    config = settings_of("paper" if recipe is None else recipe, "native" if preset is None else preset)
    loss = _typed(words, "--loss")
    if loss is not None and loss != config.loss:  # options of the recipe's loss are not those of another
        config = replace(config, loss=loss, loss_options=())
    return TrainArguments(tyro.MISSING, config=config)


def _saved_run(words: list[str]) -> TrainArguments:
    """The saved configuration gives the defaults, so that only explicit flags can differ from it."""
    for name in ("--recipe", "--preset"):
        if _typed(words, name) is not None:
            raise InputError(f"a resumed run keeps its configuration: leave {name} out.")
    if (typed := _typed(words, "-o", "--out")) is None:
        return TrainArguments(tyro.MISSING)
    out = Path(typed)
    if not (out / "config.json").exists():
        raise InputError(f"{out} has no run to resume (no config.json): check -o, or start a new run without --resume.")
    config = TrainConfig.load(out / "config.json")
    if own_file(config.loss) is not None and _typed(words, "--loss") is None:  # a folder from others must not run code
        raise InputError(f"the run's loss is a Python file; to run it, name it again: --resume --loss {config.loss}")
    return TrainArguments(out, config=config)


def _override_options(given: TrainConfig, default: TrainConfig) -> TrainConfig:
    """Explicit loss options override those of the recipe or saved run by name; the others stay."""
    if given.loss != default.loss or given.loss_options == default.loss_options:
        return given
    options = {**parse_options(default.loss_options), **parse_options(given.loss_options)}
    return replace(given, loss_options=format_options(options))


def _typed(words: list[str], *names: str) -> str | None:
    """The value of an option before tyro reads it: it decides the defaults of the others."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else words[number + 1] if number + 1 < len(words) else ""
    return None
