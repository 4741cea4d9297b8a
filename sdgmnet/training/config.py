"""All settings of a training run, in one frozen dataclass. Defaults are the paper's (Section III-E)."""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typing_extensions import Doc

from sdgmnet.data.sources import accepted
from sdgmnet.errors import InputError, suggestion
from sdgmnet.options import Option
from sdgmnet.registry import (
    ENCODERS,
    LOSSES,
    Augmentation,
    Balance,
    Engine,
    is_loss_name,
    is_window,
    load,
    own_file,
    parse_options,
)
from sdgmnet.storage import read_json, write_json

Schedule = Literal["halving", "linear", "cosine", "step"]
Optimizer = Literal["sgd", "adam"]
Initialisation = Literal["torch", "orthogonal"]
if TYPE_CHECKING:
    EncoderName = str
else:
    EncoderName = Literal[tuple(ENCODERS)]

PAPER_ITERATIONS = 200_000
EPOCHS = 200  # an epoch is 1/200 of a run, whatever its length
SDGM_OPTIONS = (  # for the help text, which needs no torch
    "margin=0.6, alpha=0.9, decay=0.999, warmup=0.1, initial_power=null, min_negative_angle=0.6, threshold_start=0.0, "
    "self_weight=auto-focus, coupled_weight=cdf, power_adjustment=true"
)
LARGEST_COUNT = 10**12  # more is a typing error, and is not exact as a float
# Settings that may change when a run is resumed: none changes its bits. (The content of the data is compared separately.)
FREE_ON_RESUME = ("data", "checkpoint_every", "tensorboard", "wandb")


@dataclass(frozen=True)
class TrainConfig:
    data: Annotated[tuple[str, ...], Doc(f"Training data: {accepted()}. (required)")] = ("demo",)
    holdout: Annotated[tuple[str, ...], Option(metavar="SET")] = ()
    """Names of sets to evaluate on instead of training on them, such as notredame yosemite. Other sets of the same scene,
    such as church-views of church, are not trained on either. Test pairs are drawn for sets that have none."""
    iterations: int = PAPER_ITERATIONS
    """Number of training steps. The learning rate schedule, warm-up and epochs (1/200 of the run) scale with it."""
    batch_size: int = 1024
    """Matching pairs per batch, each of a different point."""
    seed: int = 0
    """Random seed. Runs with the same seed and --threads on the same machine are bit-identical."""
    encoder: Annotated[EncoderName, Doc(f"Network architecture: {', '.join(ENCODERS)}.")] = "sdgmnet"
    initialisation: Initialisation = "torch"
    """Initial weights. torch: its defaults, as in the published code. orthogonal: as HardNet and CDFDesc, with gain 0.6."""
    mean_image: bool = False
    """Subtract the mean training patch from each patch, as L2Net does. Only for --encoder l2net."""
    optimizer: Optimizer = "sgd"
    """sgd (the paper), or adam with its default betas."""
    learning_rate: float = 1.0
    """Initial learning rate."""
    schedule: Schedule = "halving"
    """Learning rate. halving (the paper): halved after each 10 % of the run. linear, cosine: decay to 0. step: see --drops."""
    drops: int = 0
    """For --schedule step: number of drops, at equal intervals; 0 keeps the learning rate constant."""
    drop_factor: float = 0.1
    """For --schedule step: factor of each drop."""
    momentum: float = 0.9
    """Momentum of SGD."""
    dampening: float = 0.0
    """Dampening of SGD's momentum; HardNet uses 0.9."""
    weight_decay: float = 1e-4
    """Weight decay of all parameters, as in the published code."""
    dropout: float = 0.3
    """Dropout rate before the last convolution."""
    augmentation: Augmentation = "paper"
    """paper: rotation, crop, quarter turns, flips. strong: larger, and blur, noise, JPEG. detector: rotation and scale, as
    keypoints of one point differ. turned: as detector, with larger changes of scale, and 15 % of the patches rotated by any
    angle. hardnet, hynet, cdfdesc: quarter turns and flips."""
    balance: Balance = "points"
    """What is sampled equally often: points, or scenes, however many points they have."""
    views: float = 0.5
    """Share of batches, 0 to 1, that use a scene's synthetic views (data views), if it also has patches of photos."""
    scenes_per_batch: int | None = None
    """Number of scenes in a batch, chosen at random for each. Fewer give more negatives from the same image, which are harder;
    default: all."""
    carried: Annotated[bool, Option(name="reprojected", former=("--carried",))] = True
    """Also train on patches at reprojected locations, where no keypoint was detected (see data photos --reprojected)."""
    window: float | None = None
    """Side of the training patches in sigmas: the centre of sets cut wider; default: that of the narrowest set."""
    window_jitter: float = 0.0
    """Each pair has a random window, between 1 - X and 1 of --window."""
    loss: Annotated[
        str,
        Doc(
            f"Loss function: {', '.join(LOSSES)}; pml:NAME for a pair-based loss of pytorch-metric-learning, e.g. "
            "pml:CircleLoss; or FILE.py:NAME for your own (docs/guides/own_loss.md)."
        ),
    ] = "sdgm"
    loss_options: Annotated[
        tuple[str, ...],
        Option(metavar="NAME=VALUE"),
        Doc(
            f"Arguments of the loss as NAME=VALUE, e.g. margin=0.7 alpha=1. The options of sdgm and their "
            f"defaults: {SDGM_OPTIONS}. In training, decay defaults to 1 - 200 / iterations, clipped to [0.9, 0.999]."
        ),
    ] = ()
    orthogonality: float = 0.0
    """Weight of global orthogonal regularisation, added to the loss."""
    teacher: str | None = None
    """Weights of a larger encoder: the angles between descriptors also follow those between the teacher's; default: none."""
    teacher_weight: float = 1.0
    """Weight of the squared differences from the teacher's angles, added to the loss."""
    joint_batchnorm: bool = False
    """Compute BatchNorm statistics over anchors and positives together. The published code computes them separately."""
    init: str | None = None
    """Start from these weights: sdgmnet (the shipped weights), a .safetensors file or the folder of a run; default: none."""
    device: str = "auto"
    """auto (cuda if available), cpu, cuda or cuda:N."""
    threads: int | None = None
    """Number of CPU threads; default: torch's. Results depend on it in the last bits."""
    engine: Engine = "auto"
    """native: our C++ code, for CPUs. eager: torch. auto: native on a CPU where it is available, otherwise eager."""
    recompute: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory, a quarter slower."""
    chunk_size: int | None = None
    """Patches per forward pass; does not change the result. Default on a CPU: 64 (eager) or 1024 (native); on a GPU: all."""
    evaluations: int | None = None
    """Number of evaluations on the held-out pairs. Default: 200 for runs of 200 000 iterations, otherwise 20."""
    evaluation_pairs: int | None = None
    """Maximum number of pairs per held-out set. Default: all for runs of 200 000 iterations, otherwise 5000."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints. Default: every three minutes."""
    tensorboard: bool = False
    """Also write TensorBoard events (pip install 'sdgmnet[tensorboard]')."""
    wandb: bool = False
    """Also log to Weights & Biases (pip install 'sdgmnet[wandb]'): offline, into the run, unless WANDB_MODE=online is set."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(TrainConfig).items():
            value = getattr(self, name)
            if isinstance(value, float):
                _require(math.isfinite(value), name, "must be a finite number", str(value))
            if get_origin(hint) is Literal:
                choices = get_args(hint)
                _require(value in choices, name, f"must be one of {', '.join(choices)}", value)
            if name in RULES and value is not None:
                holds, rule = RULES[name]
                _require(holds(value), name, rule, value)
            if isinstance(value, int) and name != "seed" and value > LARGEST_COUNT:
                raise InputError(f"--{name.replace('_', '-')} {value} is too large.")
        names = f"must be one of {', '.join(LOSSES)}, pml:NAME or FILE.py:NAME"
        if not is_loss_name(self.loss):
            raise InputError(f"--loss {names}, not {self.loss!r}{suggestion(self.loss, LOSSES)}")
        options = parse_options(self.loss_options)
        if options and self.loss in LOSSES:  # code from elsewhere is not run to check a configuration
            from sdgmnet.loss.registry import loss_by_name

            loss_by_name(self.loss, options)
        self._check_encoder()

    def _check_encoder(self) -> None:
        """Settings that only some encoders have."""
        rule = "is for the encoder l2net"
        _require(self.encoder == "l2net" or not self.mean_image, "mean_image", rule, self.mean_image)
        if (self.chunk_size is not None or self.recompute) and not load(ENCODERS[self.encoder]).chunkable:
            rule = f"cannot be used with {self.encoder}, whose BatchNorm needs the whole batch"
            _require(self.chunk_size is None, "chunk_size", rule, self.chunk_size)
            _require(not self.recompute, "recompute", rule, self.recompute)
        if self.encoder == "tfeat":
            _require(self.dropout == 0, "dropout", "must be 0 with tfeat, which has none", self.dropout)
            takes_any_length = self.loss == "tfeat" or own_file(self.loss) is not None
            rule = "must be tfeat, or your own, with the encoder tfeat: its descriptors are not of unit length"
            _require(takes_any_length, "loss", rule, self.loss)
            _require(self.orthogonality == 0, "orthogonality", "is for descriptors of unit length", self.orthogonality)
            _require(self.teacher is None, "teacher", "is for descriptors of unit length", self.teacher)

    def loss_setting(self, name: str) -> Any:
        """An option of the loss: as given, otherwise its default. A loss without this option has the default of SDGM's."""
        from sdgmnet.loss.registry import loss_defaults

        options = {**loss_defaults("sdgm"), **loss_defaults(self.loss), "decay": self.default_decay}
        return {**options, **parse_options(self.loss_options)}[name]

    def sdgm_setting(self, name: str) -> Any:
        """An option of SDGM's loss; its default where the run has another loss."""
        from sdgmnet.loss.registry import loss_defaults

        return self.loss_setting(name) if self.loss == "sdgm" else loss_defaults("sdgm")[name]

    @property
    def default_decay(self) -> float:
        """The decay of Eq. (14) if none is given: 0.999 at the paper's length."""
        return min(0.999, max(0.9, 1 - EPOCHS / self.iterations))

    @property
    def pairs(self) -> int:
        """Training pairs of the whole run."""
        return self.iterations * self.batch_size

    @property
    def chunk(self) -> int:
        """Patches per chunk: the whole side of a batch unless chunk_size is set."""
        return self.chunk_size or self.batch_size

    @property
    def is_paper_length(self) -> bool:
        return self.iterations >= PAPER_ITERATIONS

    @property
    def most_evaluation_pairs(self) -> int | None:
        return self.evaluation_pairs or (None if self.is_paper_length else 5000)

    def learning_rate_at(self, step: int) -> float:
        """The paper's is halved after each 10 % of the iterations: the last tenth runs at 2^-9 of the first."""
        if self.schedule == "linear":
            return self.learning_rate * (1 - step / self.iterations)
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * step / self.iterations)) / 2
        if self.schedule == "step":
            return self.learning_rate * self.drop_factor ** ((self.drops + 1) * step // self.iterations)
        return self.learning_rate * 0.5 ** (10 * step // self.iterations)

    def evaluation_steps(self) -> set[int]:
        """Steps after which to evaluate: 0, the last, and evenly between."""
        count = min(self.evaluations or (EPOCHS if self.is_paper_length else 20), self.iterations)
        return {self.iterations * part // count for part in range(count + 1)}

    def epoch_ends(self, step: int) -> bool:
        """Whether `step` completed iterations complete an epoch."""
        return step * EPOCHS // self.iterations > (step - 1) * EPOCHS // self.iterations

    def save(self, path: Path) -> None:
        write_json(path, dataclasses.asdict(self))

    @staticmethod
    def load(path: Path) -> "TrainConfig":
        return TrainConfig.from_dict(read_json(path), str(path))

    @staticmethod
    def from_dict(content: Any, source: str) -> "TrainConfig":
        """What JSON held, checked. `source` names it in errors."""
        content = _nest_loss_options(content) if isinstance(content, dict) else content
        hints = get_type_hints(TrainConfig)
        if not isinstance(content, dict) or set(content) - set(hints):
            raise InputError(f"{source} is not a training configuration of this version.")
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        for name, value in fields.items():
            if not _is_of(value, hints[name]):
                raise InputError(f"{source} has an invalid value for {name}: {str(value)[:60]!r}.")
        return TrainConfig(**fields)


Rule = tuple[Callable[[Any], bool], str]
COUNT: Rule = (lambda value: value >= 1, "must be at least 1")
POSITIVE: Rule = (lambda value: value > 0, "must be positive")
NOT_NEGATIVE: Rule = (lambda value: value >= 0, "must not be negative")
SHARE: Rule = (lambda value: 0 <= value <= 1, "must lie in [0, 1]")
BELOW_ONE: Rule = (lambda value: 0 <= value < 1, "must lie in [0, 1)")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("iterations", "threads", "chunk_size", "evaluations", "evaluation_pairs"), COUNT),
    **dict.fromkeys(("checkpoint_every", "scenes_per_batch"), COUNT),
    "batch_size": (lambda value: value >= 2, "must be at least 2, so that each pair has a negative"),
    "seed": (lambda value: 0 <= value < 2**63, "must be in [0, 2^63)"),
    "learning_rate": POSITIVE,
    "momentum": BELOW_ONE,
    "dampening": BELOW_ONE,
    "drops": NOT_NEGATIVE,
    "drop_factor": (lambda value: 0 < value <= 1, "must lie in (0, 1]"),
    "orthogonality": NOT_NEGATIVE,
    "teacher_weight": POSITIVE,
    "views": SHARE,
    "weight_decay": NOT_NEGATIVE,
    "window_jitter": (lambda value: 0 <= value <= 0.5, "must lie in [0, 0.5]"),
    "window": (is_window, "must be from 1 to 100"),
}


def _nest_loss_options(content: dict[str, Any]) -> dict[str, Any]:
    """Earlier configurations had SDGM's options as settings of their own: they become loss options."""
    if not set(content) - set(TrainConfig.__dataclass_fields__):
        return content
    from sdgmnet.loss.registry import loss_defaults

    former = {**loss_defaults("sdgm"), "decay": None}
    loss, options = content.get("loss", "sdgm"), content.get("loss_options", [])
    if not isinstance(loss, str) or not isinstance(options, list):
        return content  # damaged: refused for its types
    accepted = loss_defaults(loss) if loss in LOSSES else former
    changed = {name: content[name] for name in former if name in content and content[name] != former[name]}
    nested = format_options({name: value for name, value in changed.items() if name in accepted})
    kept = {name: value for name, value in content.items() if name not in former}
    return {**kept, "loss_options": [*options, *nested]}


def format_options(options: dict[str, Any]) -> tuple[str, ...]:
    """The inverse of `parse_options`: NAME=VALUE each."""
    return tuple(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items())


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value from JSON can be a field of this type. An integer is also a float; true and false are neither."""
    if get_origin(hint) is Literal:
        return value in get_args(hint) and isinstance(value, str)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
    if get_args(hint):  # a union
        return any(_is_of(value, one) for one in get_args(hint))
    if hint is float and type(value) is int:
        return abs(value) <= LARGEST_COUNT
    if hint is int:
        return type(value) is int
    return isinstance(value, hint)


def differences(saved: TrainConfig, given: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Fields that differ: name -> (saved, given)."""
    before, after = dataclasses.asdict(saved), dataclasses.asdict(given)
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def _require(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise InputError(f"--{name.replace('_', '-')} {rule}, not {json.dumps(value)}.")
