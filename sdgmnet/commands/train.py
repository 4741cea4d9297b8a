"""`sdgmnet train`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from sdgmnet.distributed import is_rank_zero_process
from sdgmnet.errors import InputError
from sdgmnet.loss.registry import own_file
from sdgmnet.plots import draw_fig2, draw_training
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train
from sdgmnet.training.recipes import Preset, settings_of


@dataclass(frozen=True)
class TrainArguments:
    """Train a descriptor on matching pairs of patches: Algorithm 1 of the paper, its settings as defaults.

    A run is a folder: config.json, log.jsonl, checkpoints/, best.safetensors, last.safetensors, results.json and images.
    Stop it with Ctrl-C and go on with --resume, to the same bits as if it had never stopped.

    The paper's full run on Liberty:

        sdgmnet train --data ubc --holdout notredame yosemite -o runs/liberty

    One that learns in minutes on a laptop:

        sdgmnet train --data demo --iterations 1000 --batch-size 64 -o runs/small

    A method the paper compares with, by its own paper's settings, or by SDGMNet's with only its loss:

        sdgmnet train --recipe hynet --data ubc --holdout notredame yosemite -o runs/hynet
        sdgmnet train --recipe hynet --preset sdgm --data ubc --holdout notredame yosemite -o runs/hynet-loss

    On patches of your own photos, in an hour or two:

        sdgmnet train --recipe photos --data my_patches --holdout church -o runs/mine

    By several processes, to the same result (docs/distributed.md):

        torchrun --nproc-per-node 4 -m sdgmnet train --data ubc --holdout notredame yosemite -o runs/liberty
    """

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder of the run."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on with the run in that folder, with its saved configuration."""
    recipe: str = "paper"
    """Settings to start from, what is typed beside goes before them: paper or sdgmnet; photos, for an hour or two on a CPU; a
    method of Table 1: tfeat, l2net, hardnet, cdfdesc, sosnet, hardnet+frn, hynet; or the ablation: theta, s, l2 or af with +pa
    or -pa, as in l2-pa."""
    preset: Preset = "native"
    """Of a method's recipe. native: its own network, optimiser, schedule, batch and augmentation, stretched to --iterations.
    sdgm: SDGMNet's everything, only the loss is the method's."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)


def main(words: list[str]) -> None:
    recipe_name, preset = _typed(words, "--recipe"), _typed(words, "--preset")
    recipe = settings_of("paper" if recipe_name is None else recipe_name, "native" if preset is None else preset)
    for name in ("--recipe", "--preset"):
        if "--resume" in words and _typed(words, name) is not None:
            raise InputError(f"a resumed run keeps its configuration: leave {name} out.")
    default = _saved(words) or TrainArguments(tyro.MISSING, config=recipe)
    arguments = tyro.cli(TrainArguments, prog="sdgmnet train", args=words, default=default)
    train(arguments.config, arguments.out, resume=arguments.resume, console=Console(stderr=True))
    if not is_rank_zero_process():
        return
    config = arguments.config
    draw_training(arguments.out / "log.jsonl", arguments.out / "training.png")
    if config.loss == "sdgm":
        kinds = {"self_kind": config.self_weight, "coupled_kind": config.coupled_weight}
        draw_fig2(arguments.out / "angles.npz", arguments.out / "fig2.png", config.margin, **kinds)


def _saved(words: list[str]) -> TrainArguments | None:
    """On resume the saved configuration gives the defaults, so that only what is typed can differ from it."""
    if "--resume" not in words:
        return None
    if (typed := _typed(words, "-o", "--out")) is None:
        return None
    out = Path(typed)
    if not (out / "config.json").exists():
        raise InputError(f"{out} holds no run to resume: start it without --resume.")
    config = TrainConfig.load(out / "config.json")
    if own_file(config.loss) is not None and _typed(words, "--loss") is None:  # a folder from others must not run code
        raise InputError(f"the run's loss is a Python file; to run it, name it again: --resume --loss {config.loss}")
    return TrainArguments(out, config=config)


def _typed(words: list[str], *names: str) -> str | None:
    """What was typed after an option, before tyro reads it: it decides the defaults of the others."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else words[number + 1] if number + 1 < len(words) else ""
    return None
