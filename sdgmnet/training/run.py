"""A training run in memory: what a checkpoint holds, how it is built, and one step of it."""

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.data.augmentation import OUTPUT_SIDE, shrink
from sdgmnet.data.patchset import PatchSet, some_pairs
from sdgmnet.data.sampler import PairSampler
from sdgmnet.data.window import at_window
from sdgmnet.distributed import ALONE, SilentExit, World, local_rank, share_of, synchronise_batchnorm
from sdgmnet.encoders import ENCODERS, Encoder, L2Net, TFeat, initialise_orthogonally, load_encoder
from sdgmnet.engine import (
    INFERENCE,
    TRAINING,
    Engine,
    Trunk,
    build_trunk,
    choose_chunk,
    choose_engine,
    describe_patches,
    device_of,
)
from sdgmnet.errors import InputError
from sdgmnet.loss.orthogonal import WithOrthogonality
from sdgmnet.loss.registry import loss_by_name
from sdgmnet.metrics import fpr_at_recall, pair_distances
from sdgmnet.registry import parse_options
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.step import Teacher, draw_batch, train_step

# Of mallopt in glibc, and the largest block in bytes that is kept
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST_BLOCK = -1, -3, 2**30


class Diverged(RuntimeError):
    """The weights, the descriptors or the loss are not finite."""


@dataclass
class Run:
    config: TrainConfig
    encoder: Encoder
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    sampler: PairSampler
    device: torch.device
    trunk: Trunk
    teacher: Teacher | None = None
    world: World = ALONE
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # over the iterations of this epoch
    counted: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    inherited: dict[str, list[str]] = field(default_factory=dict)  # sets and scenes that --init and --teacher saw

    def state(self) -> dict[str, Any]:
        return {
            "encoder": self.encoder.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "torch_random": torch.get_rng_state(),
            "sums": self.sums,
            "counted": self.counted,
            "best": self.best,
            "inherited": self.inherited,
            "ranks": self.world.size,
            "threads": self.config.threads,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_random"])
        self.step, self.sums, self.counted, self.best = state["step"], state["sums"], state["counted"], state["best"]
        self.inherited = state.get("inherited", self.inherited)  # checkpoints of earlier versions do not have it

    def check_finite(self) -> None:
        """Before anything is saved or measured: a step with a finite loss can still break the weights."""
        if not all(torch.isfinite(parameter).all() for parameter in self.encoder.parameters()):
            raise Diverged("the encoder's weights are not finite")


def resolve_hardware(config: TrainConfig, device: torch.device) -> TrainConfig:
    """Replace engine, chunk size and threads left open by those of this machine: results depend on them in the last bits."""
    encoder = ENCODERS[config.encoder](config.dropout).to(device)
    engine = choose_engine(config.engine, encoder)
    chunk_size = config.chunk_size or choose_chunk(engine, encoder, TRAINING) if encoder.chunkable else None
    threads = config.threads or torch.get_num_threads()
    return replace(config, engine=engine, chunk_size=chunk_size, threads=threads)


def make_sampler(config: TrainConfig, patchsets: Sequence[PatchSet]) -> PairSampler:
    return PairSampler(
        patchsets,
        config.seed,
        balance=config.balance,
        views=config.views,
        scenes_per_batch=config.scenes_per_batch,
        reprojected=config.carried,
        window=config.window,
        window_jitter=config.window_jitter,
    )


def start(
    config: TrainConfig,
    patchsets: Sequence[PatchSet],
    *,
    device: torch.device | None = None,
    resume: bool = False,
    world: World = ALONE,
) -> Run:
    """A run at step 0, with initial weights; on resume, a checkpoint replaces them."""
    device = choose_device(config.device) if device is None else device
    torch.set_num_threads(config.threads or torch.get_num_threads())
    keep_freed_memory()
    torch.manual_seed(config.seed)
    encoder = ENCODERS[config.encoder](config.dropout)
    if config.initialisation == "orthogonal":
        initialise_orthogonally(encoder)
    sampler = make_sampler(config, patchsets)
    encoder.window = sampler.window
    sampler.require_batch_size(config.batch_size)
    if config.mean_image and isinstance(encoder, L2Net) and not resume:
        encoder.mean_image.copy_(mean_image(sampler))
    initial_card = load_initial_weights(encoder, config) if config.init is not None and not resume else {}
    encoder.to(device).train()
    engine = choose_engine(config.engine, encoder)
    if world.size > 1 and not encoder.chunkable:
        for name, child in encoder.named_children():
            if name != "norm":  # which sees the gathered batch
                setattr(encoder, name, synchronise_batchnorm(child, world))
    loss = build_loss(config).to(device)
    optimizer = build_optimizer(config, encoder)
    trunk = build_trunk(encoder, engine, config.recompute)
    teacher = None if config.teacher is None else load_teacher(config, encoder)
    cards = [initial_card] + ([] if teacher is None else [teacher.card])
    inherited = {
        key: sorted({name for card in cards for name in card.get(key) or []}) for key in ("trained_on", "scenes")
    }
    return Run(config, encoder, loss, optimizer, sampler, device, trunk, teacher, world, inherited=inherited)


def load_teacher(config: TrainConfig, encoder: Encoder) -> Teacher:
    """The encoder of --teacher, which must take the student's patches."""
    assert config.teacher is not None
    loaded, card = load_encoder(config.teacher)
    if isinstance(loaded, TFeat):
        raise InputError(
            f"--teacher {config.teacher} is a TFeat, whose descriptors are not of unit length: give another."
        )
    if loaded.window != encoder.window:
        raise InputError(
            f"--teacher {config.teacher} takes patches of {loaded.window:g} sigma, this run has {encoder.window:g}: "
            f"train with sets of at least {loaded.window:g} sigma and --window {loaded.window:g}."
        )
    loaded.to(device_of(encoder))
    engine: Engine = "eager" if config.engine == "eager" else "auto"

    def describe(patches: Tensor) -> Tensor:
        return torch.from_numpy(describe_patches(loaded, patches, engine=engine)).to(patches.device)

    return Teacher(describe, config.teacher_weight, card)


def load_initial_weights(encoder: Encoder, config: TrainConfig) -> dict[str, Any]:
    """Their card."""
    assert config.init is not None
    initial, card = load_encoder(config.init)
    if type(initial) is not type(encoder):
        raise InputError(f"--init {config.init} holds a {type(initial).__name__}, not a {config.encoder}.")
    encoder.load_state_dict(initial.state_dict())
    return card


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next step, for the rest of the process.

    Otherwise it returns large blocks at once, and the system hands out and clears the same pages at each step: a fifth of a
    step of L2Net on a CPU. Peak memory is 5 % more with L2Net, and the same with SDGMNet.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library
        library = ctypes.CDLL(None)
        if library.mallopt(MMAP_THRESHOLD, LARGEST_BLOCK):  # with the second setting alone, memory use would be worse
            library.mallopt(TRIM_THRESHOLD, LARGEST_BLOCK)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":  # each rank of a machine has its own
        name = f"cuda:{local_rank()}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name} cannot be used here ({reason}): try --device cpu.") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name} is not supported: use cpu or cuda.")
    if device.type == "cuda":  # not run on a GPU
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return device


def mean_image(sampler: PairSampler, most: int = 20_000) -> Tensor:
    """(32, 32): the mean training patch in [0, 1], of at most `most` patches, evenly spread."""
    count = len(sampler.order)
    chosen = sampler.order[np.linspace(0, count - 1, min(count, most), dtype=np.int64)]
    total = torch.zeros(OUTPUT_SIDE, OUTPUT_SIDE, dtype=torch.float64)
    for start in range(0, len(chosen), 1000):
        some = chosen[start : start + 1000]
        pixels = torch.from_numpy(sampler.patches(some)).float() / 255
        total += shrink(pixels, sampler.shares_of(some)).double().sum(dim=0)
    return total / len(chosen)


def build_optimizer(config: TrainConfig, encoder: nn.Module) -> torch.optim.Optimizer:
    """The learning rate is set at each step."""
    parameters, rate, decay = encoder.parameters(), config.learning_rate, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    momentum, dampening = config.momentum, config.dampening
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, dampening=dampening, weight_decay=decay)


def build_loss(config: TrainConfig) -> nn.Module:
    loss = loss_by_name(config.loss, parse_options(config.loss_options), {"decay": config.default_decay})
    return WithOrthogonality(loss, config.orthogonality) if config.orthogonality else loss


def iterate_once(run: Run) -> float:
    """One step of Algorithm 1, from sampling the batch to the optimiser; returns the loss."""
    config, step = run.config, run.step
    for group in run.optimizer.param_groups:
        group["lr"] = config.learning_rate_at(step)
    sides, keep = draw_batch(run.encoder, run.sampler, config, step, run.world)
    try:
        value = train_step(
            run.encoder,
            run.loss,
            run.optimizer,
            sides,
            keep,
            progress=step / config.iterations,
            chunk_size=config.chunk,
            joint_batchnorm=config.joint_batchnorm,
            trunk=run.trunk,
            teacher=run.teacher,
            world=run.world,
        ).item()
    except InputError as error:  # losses refuse descriptors that are not finite
        if step == 0:  # the input is wrong: training cannot have broken anything yet
            if run.world.is_rank_zero:
                raise
            raise SilentExit(2) from error  # all ranks compute the same loss
        raise Diverged(str(error)) from error
    if not np.isfinite(value):
        raise Diverged(f"the loss is {value}")
    run.step += 1
    return value


def evaluate(run: Run, tests: Sequence[PatchSet]) -> dict[str, float]:
    """FPR@95 of the current encoder on each held-out set, and their mean. Each rank describes a part of the patches."""
    scores, world = {}, run.world
    engine = inference_engine(run)

    def describe(patches: np.ndarray) -> np.ndarray:
        mine = share_of(len(patches), world.rank, world.size, INFERENCE.native)
        return np.concatenate(world.all_gather_object(describe_patches(run.encoder, patches[mine], engine=engine)))

    for patchset in tests:
        pairs = some_pairs(patchset, run.config.most_evaluation_pairs)
        distances, labels = pair_distances(at_window(describe, patchset, run.encoder.window), patchset.patches, pairs)
        if not np.isfinite(distances).all():  # finite weights may still give descriptors that are not
            raise Diverged(f"the descriptors of {patchset.name} are not finite")
        scores[patchset.name] = fpr_at_recall(distances, labels)
    return {**scores, "mean": float(np.mean(list(scores.values())))}


def inference_engine(run: Run) -> Engine:
    """The engine that evaluations use. auto: L2Net with synchronised BatchNorm has no native engine."""
    return "eager" if run.config.engine == "eager" else "auto"


def report_of(loss: nn.Module) -> dict[str, float]:
    """Statistics of a loss's last batch (`report`, a named tuple of scalars), if it has any."""
    report = getattr(loss, "report", None)
    return {} if report is None else {name: value.item() for name, value in report._asdict().items()}


def running_of(loss: nn.Module) -> dict[str, float]:
    """The running statistics of a loss (`running()`), if it has any."""
    running = getattr(loss, "running", dict)
    return {f"running_{name}": value for name, value in running().items()}
