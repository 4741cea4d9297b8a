"""All that shapes a training run, in one frozen place. Defaults are the paper's settings (Section III-E)."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sdgmnet.data.augmentation import Augmentation
from sdgmnet.data.sampler import Balance
from sdgmnet.encoders import ENCODERS
from sdgmnet.errors import InputError
from sdgmnet.loss import LOSSES
from sdgmnet.loss.registry import is_loss_name, own_file, parse_options
from sdgmnet.storage import read_json, write_json
from sdgmnet.training.engine import Engine

Schedule = Literal["halving", "linear", "cosine", "step"]
Optimizer = Literal["sgd", "adam"]
EncoderName = Literal["sdgmnet", "l2net", "tfeat"]
Initialisation = Literal["torch", "orthogonal"]

PAPER_ITERATIONS = 200_000
MOST = 10**12  # of anything that is counted: more is a slip, and no float
SDGM_ONLY = ("margin", "alpha", "threshold_start", "self_weight", "coupled_weight", "power_adjustment")
EPOCHS = 200  # an epoch is 1/200 of a run, whatever its length
# What may change between the parts of a run without changing its bits.
FREE_ON_RESUME = ("data", "checkpoint_every", "tensorboard")  # the content of the data is compared by itself


@dataclass(frozen=True)
class TrainConfig:
    data: tuple[str, ...] = ("demo",)
    """What to train on: PatchSets, PhotoTour folders, a folder of these, or "demo"."""
    holdout: tuple[str, ...] = ()
    """Names of sets to keep out of training and evaluate on, e.g. notredame yosemite."""
    iterations: int = PAPER_ITERATIONS
    """Steps of the whole run; learning rate, warm-up and epochs stretch with it (the paper: 200 epochs of 1000)."""
    batch_size: int = 1024
    """Matching pairs in a batch, one a point."""
    seed: int = 0
    """Same seed, same machine: same bits."""
    encoder: EncoderName = "sdgmnet"
    """The paper's, or L2Net's or TFeat's for the methods that came with them."""
    initialisation: Initialisation = "torch"
    """Of the weights. torch: its defaults, as the published code. orthogonal: HardNet's and CDFDesc's, with gain 0.6."""
    mean_image: bool = False
    """Take the mean of the training patches off each patch first, as L2Net does; for that encoder."""
    optimizer: Optimizer = "sgd"
    """sgd (the paper), or adam with its usual betas."""
    learning_rate: float = 1.0
    """Of the optimiser at the start."""
    schedule: Schedule = "halving"
    """Of the learning rate. halving: after each 10 % of the iterations (the paper). linear, cosine: down to 0 at the end.
    step: --drops times by --drop-factor, at equal intervals."""
    drops: int = 0
    """How often the schedule step lowers the learning rate; 0 keeps it constant."""
    drop_factor: float = 0.1
    """What a drop of the schedule step multiplies the learning rate by."""
    momentum: float = 0.9
    """Of SGD."""
    dampening: float = 0.0
    """Of SGD's momentum; HardNet has 0.9."""
    weight_decay: float = 1e-4
    """On all parameters, as the published code."""
    dropout: float = 0.3
    """Rate before the last convolution."""
    augmentation: Augmentation = "paper"
    """paper: turns within 5 degrees, crops, quarter turns, flips. strong: more of it, and light, blur, noise, JPEG. hardnet,
    hynet, cdfdesc: quarter turns and flips only, as those methods draw them."""
    balance: Balance = "points"
    """points: every point equally often. scenes: every scene, however many points it has."""
    views: float = 0.5
    """How often a scene shows its synthetic views (data views) in a batch, where it has patches of photos too. With --balance
    scenes, this is also their share of the pairs."""
    carried: bool = True
    """Also patches at carried places where no keypoint was detected (data photos --carried)."""
    loss: str = "sdgm"
    """sdgm, hardnet, hardnet-original, tfeat, l2net, cdf, sosnet, hynet, keller, exp-tl or sface; pml:CircleLoss, or another
    pair-based loss of pytorch-metric-learning; or one of your own, my_loss.py:MyLoss (docs/own_loss.md)."""
    loss_options: tuple[str, ...] = ()
    """Arguments of the loss as NAME=VALUE, e.g. margin=1.2 reduction=mean. SDGM's have options of their own, below."""
    orthogonality: float = 0.0
    """Weight of global orthogonal regularisation, added to the loss."""
    margin: float = 0.6
    """m of Eq. (11): the share of triplets taken to be easy enough."""
    alpha: float = 0.9
    """Attenuation of the positive power, Eq. (13)."""
    decay: float | None = None
    """Of the running statistics, Eq. (14). None: 1 - 200 / iterations within [0.9, 0.999], the paper's ratio."""
    warmup: float = 0.1
    """Share of the iterations in which all weights are 1."""
    initial_power: float | None = None
    """Of both running powers. None: 10000 / 1024 a pair, the paper's 10000 at its batch size."""
    min_negative_angle: float = 0.6
    """Anti-noise threshold in radians: nearer negatives are ignored."""
    threshold_start: float = 0.0
    """Share of the iterations before the anti-noise threshold applies; the published code has 0.125."""
    self_weight: Literal["auto-focus", "angle", "cosine", "l2"] = "auto-focus"
    """Eqs. (9)-(10), or one of the ablations: &θ, &s, &l2."""
    coupled_weight: Literal["cdf", "step"] = "cdf"
    """Eq. (11), or the step of the published code."""
    power_adjustment: bool = True
    """Divide by the running powers, Eq. (13)."""
    joint_batchnorm: bool = False
    """BatchNorm over anchors and positives at once; the published code has it a side."""
    init: str | None = None
    """Weights to start from: a .safetensors file or a run folder."""
    device: str = "auto"
    """auto takes CUDA where there is one."""
    threads: int | None = None
    """CPU threads; part of what makes two runs equal. None: as many as torch would take."""
    engine: Engine = "auto"
    """How the trunk runs. auto: native (our own C++) on a CPU where there is a C++ compiler, eager (torch) elsewhere."""
    recompute: bool = False
    """Compute the trunk again in the backward pass instead of keeping it: a quarter slower, memory for large batches."""
    chunk_size: int | None = None
    """Patches that go through the trunk at once; the result is that of one batch. None: 64, native 1024; all on a GPU."""
    evaluations: int | None = None
    """How often to evaluate on the held-out pairs. None: 200 at the paper's length, otherwise 20."""
    evaluation_pairs: int | None = None
    """At most so many pairs of each held-out set. None: all at the paper's length, otherwise 5000."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints. None: every three minutes."""
    tensorboard: bool = False
    """Also write TensorBoard events (pip install 'sdgmnet[tensorboard]')."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"--{name.replace('_', '-')} must be a finite number, not {value}.")
        _require(
            is_loss_name(self.loss), "loss", f"must be one of {', '.join(LOSSES)}, pml:NAME or FILE.py:NAME", self.loss
        )
        parse_options(self.loss_options)
        for name, choices in (
            ("engine", Engine),
            ("augmentation", Augmentation),
            ("balance", Balance),
            ("schedule", Schedule),
            ("encoder", EncoderName),
            ("initialisation", Initialisation),
            ("optimizer", Optimizer),
        ):
            known = get_args(choices)
            _require(getattr(self, name) in known, name, f"must be one of {', '.join(known)}", getattr(self, name))
        for name in SDGM_ONLY:
            value = getattr(self, name)
            _require(
                self.loss == "sdgm" or value == getattr(TrainConfig, name),
                name,
                f"is SDGM's and cannot be set here (--loss-options {name}=... may, where the loss has one)",
                value,
            )
        _require(
            self.loss != "sdgm" or not self.loss_options,
            "loss_options",
            "is for other losses: SDGM's are --margin, --alpha and the like",
            list(self.loss_options),
        )
        self._check_encoder()
        for name in ("iterations", "batch_size"):
            value = getattr(self, name)
            _require(1 <= value <= MOST, name, f"must be at least 1 and at most {MOST}", value)
        for name in ("threads", "chunk_size", "evaluations", "evaluation_pairs", "checkpoint_every"):
            value = getattr(self, name)
            _require(value is None or 1 <= value <= MOST, name, f"must be at least 1 and at most {MOST}", value)
        _require(
            self.batch_size >= 2, "batch_size", "must be at least 2, so that each pair has a negative", self.batch_size
        )
        _require(0 <= self.seed < 2**63, "seed", "must be in [0, 2^63)", self.seed)
        _require(self.decay is None or 0 <= self.decay < 1, "decay", "must lie in [0, 1)", self.decay)
        _require(self.learning_rate > 0, "learning_rate", "must be positive", self.learning_rate)
        _require(0 <= self.momentum < 1, "momentum", "must lie in [0, 1)", self.momentum)
        _require(0 <= self.dampening < 1, "dampening", "must lie in [0, 1)", self.dampening)
        _require(self.drops >= 0, "drops", "must not be negative", self.drops)
        _require(0 < self.drop_factor <= 1, "drop_factor", "must lie in (0, 1]", self.drop_factor)
        _require(self.orthogonality >= 0, "orthogonality", "must not be negative", self.orthogonality)
        _require(0 <= self.views <= 1, "views", "must lie in [0, 1]", self.views)
        _require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)

    def _check_encoder(self) -> None:
        """What only some encoders can."""
        _require(
            self.encoder == "l2net" or not self.mean_image, "mean_image", "is for the encoder l2net", self.mean_image
        )
        if not ENCODERS[self.encoder].chunkable:
            whole = f"cannot be used with {self.encoder}, whose BatchNorm looks across the batch"
            _require(self.chunk_size is None, "chunk_size", whole, self.chunk_size)
            _require(not self.recompute, "recompute", whole, self.recompute)
        if self.encoder == "tfeat":
            _require(self.dropout == 0, "dropout", "must be 0 with tfeat, which has none", self.dropout)
            takes_any_length = self.loss == "tfeat" or own_file(self.loss) is not None
            rule = "must be tfeat, or your own, with the encoder tfeat: its descriptors are not of unit length"
            _require(takes_any_length, "loss", rule, self.loss)
            _require(self.orthogonality == 0, "orthogonality", "is for descriptors of unit length", self.orthogonality)

    @property
    def pairs(self) -> int:
        """Of the whole run."""
        return self.iterations * self.batch_size

    @property
    def chunk(self) -> int:
        """Patches in a chunk: all of a side unless said otherwise."""
        return self.chunk_size or self.batch_size

    @property
    def is_paper_length(self) -> bool:
        return self.iterations >= PAPER_ITERATIONS

    @property
    def running_decay(self) -> float:
        """The decay of Eq. (14): at the paper's length its 0.999."""
        return self.decay if self.decay is not None else min(0.999, max(0.9, 1 - EPOCHS / self.iterations))

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
        content = read_json(path)
        known = {field.name for field in dataclasses.fields(TrainConfig)}
        if not isinstance(content, dict) or set(content) - known:
            raise InputError(f"{path} is not a training configuration of this version.")
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        for name, hint in get_type_hints(TrainConfig).items():
            if name in fields and not _is_of(fields[name], hint):
                raise InputError(f"{path} gives {name} as {str(fields[name])[:60]!r}, which it cannot be.")
        return TrainConfig(**fields)


def _is_of(value: Any, hint: Any) -> bool:
    """Whether what JSON held can be a field of this type. A whole number is a number too, true and false are not."""
    if get_origin(hint) is Literal:
        return value in get_args(hint) and isinstance(value, str)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
    if get_args(hint):  # one of several
        return any(_is_of(value, one) for one in get_args(hint))
    if hint is float and type(value) is int:
        return abs(value) <= MOST
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
