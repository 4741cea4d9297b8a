"""What the paper says in passing, measured: `python -m reproduce learning-rate`, `released` and `norms`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from reproduce.captions import caption_of_run, kind_of_moments
from reproduce.figures import encoder_of, one_patchset
from reproduce.learning_rate import draw_pace, read_pace, warm_up_factor
from reproduce.margin_share import MARGINS, PAPER, draw_release
from reproduce.margin_share import released as released_shares
from reproduce.modulation_command import angles_of_run
from reproduce.norms import contrast_of, draw_norms, relate
from reproduce.output import FILES, print_written, require_folder, require_run
from sdgmnet.engine import feature_lengths
from sdgmnet.errors import InputError
from sdgmnet.loss.sdgm import PAPER_POWER_PER_PAIR
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import Out, Section, deliver, print_aside
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import read_log


@dataclass(frozen=True)
class LearningRateArguments:
    """The equivalent learning rate (Section III-E): the running power starts high, so that the first iterations are slow.

        python -m reproduce learning-rate runs/one -o pace

    f(t) = P / E_t[P], mean power of an epoch's batches over the running power at its end. It rises from about 0.1 to 1, and
    dips when the warm-up ends and the weights fall below 1.
    """

    run: tyro.conf.Positional[Path]
    """Folder of a run with SDGM's loss."""
    out: Out
    """Folder for learning_rate.png, learning_rate.pdf, results.json and table.md."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def learning_rate(words: list[str]) -> None:
    arguments = tyro.cli(LearningRateArguments, prog="python -m reproduce learning-rate", args=words)
    require_folder(arguments.out)
    require_run(arguments.run)
    config = TrainConfig.load(arguments.run / "config.json")
    if not config.loss_setting("power_adjustment"):
        raise InputError(f"{arguments.run} was trained without power adjustment: no power scaled its learning rate.")
    warmup_end = config.loss_setting("warmup") * config.iterations
    epochs = read_log(arguments.run / "log.jsonl", "epoch")
    print_aside(f"Equivalent learning rate: from {len(epochs)} epochs of {arguments.run}; seconds.")
    pace = read_pace(epochs, f"{arguments.run}/log.jsonl")
    chosen = np.unique(np.linspace(0, len(pace.step) - 1, 12, dtype=np.int64))
    rows = [
        [
            f"{pace.step[k]:.0f}",
            f"{pace.learning_rate[k]:.4g}",
            f"{pace.factor_pos[k]:.3f}",
            f"{pace.factor_neg[k]:.3f}",
        ]
        for k in chosen
    ]
    caption = (
        f"{caption_of_run(arguments.run)} f = P / E_t[P]: mean power of an epoch's batches over the running power at its end; "
        "equivalent learning rate = learning rate · f."
    )
    results = {
        "caption": caption,
        "run": arguments.run.resolve().name,
        "warmup_end": warmup_end,
    }
    results |= {name: values.tolist() for name, values in pace._asdict().items()}
    header = ("iteration", "learning rate", "f of P⁺", "f of P⁻")
    deliver(results, [Section("Equivalent learning rate", caption, header, rows)], arguments.out, arguments.json)
    initial = config.loss_setting("initial_power") or PAPER_POWER_PER_PAIR * config.batch_size
    steps = np.arange(1, int(warmup_end) + 1)
    formula = warm_up_factor(steps, config.batch_size, initial, config.loss_setting("decay"))
    draw_pace(pace, warmup_end, formula, arguments.out / "learning_rate")
    print_written(arguments.out, (*FILES, "learning_rate.png", "learning_rate.pdf"))


@dataclass(frozen=True)
class ReleasedArguments:
    """The share of triplets that the probabilistic margin m lets into training, by the angles at the end of a run.

        python -m reproduce released runs/one -o released

    The paper says of m = 0.7: fewer than 30 % (Section V-B). Were θʳ normal, the share would be 1 - m.
    """

    run: tyro.conf.Positional[Path]
    """Folder of a finished run."""
    out: Out
    """Folder for released.png, released.pdf, results.json and table.md."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def released(words: list[str]) -> None:
    arguments = tyro.cli(ReleasedArguments, prog="python -m reproduce released", args=words)
    require_folder(arguments.out)
    angles = angles_of_run(arguments.run)
    config = TrainConfig.load(arguments.run / "config.json")
    print_aside(f"Released triplets: from {len(angles.theta_pos)} triplets of {arguments.run}; seconds.")
    shares = released_shares(angles)
    rows = [
        [f"{m:g}", f"{100 * share:.1f}", f"{100 * (1 - m):.0f}", f"< {100 * PAPER[1]:.0f}" if m == PAPER[0] else ""]
        for m, share in zip(MARGINS, shares, strict=True)
    ]
    told = f"Of {len(angles.theta_pos)} triplets after its last step, by {kind_of_moments(config)}."
    caption = f"{caption_of_run(arguments.run)} {told}"
    results = {
        "caption": caption,
        "run": arguments.run.resolve().name,
        "margins": MARGINS.tolist(),
        "released": shares.tolist(),
    }
    header = ("m", "released, %", "were θʳ normal, %", "paper, %")
    deliver(results, [Section("Triplets beyond the margin", caption, header, rows)], arguments.out, arguments.json)
    draw_release(shares, config.sdgm_setting("margin"), arguments.out / "released")
    print_written(arguments.out, (*FILES, "released.png", "released.pdf"))


@dataclass(frozen=True)
class NormsArguments:
    """Do good patches have long features? The length ‖x‖ before normalisation against the contrast of the patch.

        python -m reproduce norms --data my_patches/dog --weights runs/one -o norms

    The paper leaves the factor 1/‖x‖ of Eq. (5) as it is, since good images are said to have long features (Section III-A).
    """

    out: Out
    """Folder for norms.png, norms.pdf, results.json and table.md."""
    data: str = "demo"
    """A PatchSet, a PhotoTour folder, or demo."""
    weights: str = ALIAS
    """What ships (sdgmnet), a .safetensors file or the folder of a run."""
    patches: int = 4000
    """At most so many, evenly spread over the set."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def norms(words: list[str]) -> None:
    arguments = tyro.cli(NormsArguments, prog="python -m reproduce norms", args=words)
    if arguments.patches < 4:
        raise InputError(f"--patches must be at least 4, not {arguments.patches}.")
    require_folder(arguments.out)
    patchset, encoder = one_patchset(arguments.data), encoder_of(arguments.weights)
    count = min(len(patchset), arguments.patches)
    print_aside(f"Lengths of features: {count} patches of {patchset.name}, about {count / 500:.0f} s.")
    patches = patchset.patches[np.linspace(0, len(patchset) - 1, count, dtype=np.int64)]
    contrast, length = contrast_of(patches), feature_lengths(encoder, patches)
    relation = relate(contrast, length)
    header = ("patches", "r", "95 % interval", "Spearman")
    interval = f"[{relation.low:.3f}, {relation.high:.3f}]"
    row = [str(count), f"{relation.correlation:.3f}", interval, f"{relation.rank_correlation:.3f}"]
    caption = (
        f"{count} patches of {patchset.name}, evenly spread; weights {Path(arguments.weights).name}; contrast is the standard "
        "deviation of the grey levels."
    )
    results = {
        "caption": caption,
        "data": patchset.name,
        "weights": arguments.weights,
        **relation._asdict(),
        "contrast": contrast.tolist(),
        "length": length.tolist(),
    }
    deliver(results, [Section("‖x‖ against contrast", caption, header, [row])], arguments.out, arguments.json)
    draw_norms(contrast, length, relation, arguments.out / "norms")
    print_written(arguments.out, (*FILES, "norms.png", "norms.pdf"))
