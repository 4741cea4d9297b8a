"""`sdgmnet train`: Algorithm 1 from the first step to the last, through kills and restarts to the same bits."""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from sdgmnet.data.batches import PairSampler
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sources import Sources, open_sources
from sdgmnet.encoders import SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.files import read_json, write_json
from sdgmnet.inference import describe_patches
from sdgmnet.loss import SDGMLoss
from sdgmnet.metrics import fpr_at_recall, pair_distances
from sdgmnet.pretrained import load_encoder, save_encoder
from sdgmnet.training.angles import measure_angles
from sdgmnet.training.checkpoint import load_checkpoint, run_lock, save_checkpoint
from sdgmnet.training.config import FREE_ON_RESUME, TrainConfig, differences
from sdgmnet.training.display import Display
from sdgmnet.training.log import RunLog
from sdgmnet.training.step import dropout_masks, train_step
from sdgmnet.version import __version__

SECONDS_BETWEEN_CHECKPOINTS = 180


class TrainingStopped(RuntimeError):
    """A run that cannot go on, with the reason and where its last checkpoint is."""


class Interrupted(RuntimeError):
    """A run that was asked to stop and has written its checkpoint."""


@dataclass
class Run:
    """A training run in memory: what a checkpoint holds, and what it is computed from."""

    config: TrainConfig
    encoder: SDGMNet
    loss: SDGMLoss
    optimizer: torch.optim.Optimizer
    sampler: PairSampler
    device: torch.device
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # of this epoch's iterations
    counted: int = 0
    best: dict[str, Any] = field(default_factory=dict)

    def state(self, log: RunLog) -> dict[str, Any]:
        return {
            "encoder": self.encoder.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "torch_random": torch.get_rng_state(),
            "sums": self.sums,
            "counted": self.counted,
            "best": self.best,
            "log_bytes": log.size,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_random"])
        self.step, self.sums, self.counted, self.best = state["step"], state["sums"], state["counted"], state["best"]


def train(
    config: TrainConfig, out: Path | str, *, resume: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Train, or go on training, in the folder `out`; returns what is also written there as results.json."""
    out, console = Path(out), console or Console(stderr=True)
    with ExitStack() as held:
        config = _settle(config, out, resume, console)
        if resume:
            held.enter_context(run_lock(out))
        sources = open_sources(config.data, config.holdout, progress=console.is_terminal)
        run = start(config, sources.train)
        if resume:
            log = _restore(run, sources, out, console)
        else:  # nothing is written before the input proved good
            held.enter_context(run_lock(out))
            log = _begin(run, sources, out)
        with Display(console, run.config, out, run.step) as display, stop_signals() as stopping:
            display.introduce(sources, run.device)
            last = _iterate(run, sources.test, out, log, display, stopping)
            return _finish(run, sources, last, out, display)


def _begin(run: Run, sources: Sources, out: Path) -> RunLog:
    """A new run's first files; a run can be resumed from the moment its configuration is there."""
    log = RunLog(out / "log.jsonl")
    write_json(out / "data.json", fingerprints(sources))
    save_checkpoint(out / "checkpoints", 0, run.state(log))
    run.config.save(out / "config.json")
    return log


def _restore(run: Run, sources: Sources, out: Path, console: Console) -> RunLog:
    before, now = read_json(out / "data.json"), fingerprints(sources)
    if before != now:
        changed = sorted(name for name in set(before) | set(now) if before.get(name) != now.get(name))
        raise InputError(f"the data changed since the run began ({', '.join(changed)}): resume needs the same sets.")
    state, complaints = load_checkpoint(out / "checkpoints")
    for complaint in complaints:
        console.print(f"[yellow]{complaint} Using the one before.[/]")
    run.restore(state)
    console.print(f"Resuming at step {run.step} of {run.config.iterations}.")
    return RunLog(out / "log.jsonl", keep_bytes=state["log_bytes"])


def start(config: TrainConfig, patchsets: Sequence[PatchSet]) -> Run:
    """A run at step 0: the only place where a device is chosen and weights are initialised."""
    device = choose_device(config.device)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    torch.manual_seed(config.seed)
    encoder = SDGMNet(dropout=config.dropout)
    if config.init is not None:
        encoder.load_state_dict(load_encoder(config.init)[0].state_dict())
    encoder.to(device).train()
    loss = build_loss(config).to(device)
    optimizer = torch.optim.SGD(
        encoder.parameters(), lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
    )
    sampler = PairSampler(patchsets, config.seed)
    sampler.check_batch_size(config.batch_size)
    return Run(config, encoder, loss, optimizer, sampler, device)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"--device {name} cannot be used here ({str(error).splitlines()[0]}): try --device cpu."
        ) from error
    if device.type == "cuda":  # not run on a GPU
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return device


def build_loss(config: TrainConfig) -> SDGMLoss:
    return SDGMLoss(
        margin=config.margin,
        alpha=config.alpha,
        decay=config.running_decay,
        warmup=config.warmup,
        initial_power=config.initial_power,
        min_negative_angle=config.min_negative_angle,
        threshold_start=config.threshold_start,
        self_weight=config.self_weight,
        coupled_weight=config.coupled_weight,
        power_adjustment=config.power_adjustment,
    )


def iterate_once(run: Run) -> float:
    """One step of Algorithm 1, from drawing the batch to the optimiser; returns the pseudo loss."""
    config, step = run.config, run.step
    for group in run.optimizer.param_groups:
        group["lr"] = config.learning_rate_at(step)
    sides = run.sampler.batch(step, config.batch_size, run.device, config.augment)
    keep = dropout_masks(config.seed, step, config.batch_size, run.encoder.feature_shape, config.dropout, run.device)
    value = train_step(
        run.encoder,
        run.loss,
        run.optimizer,
        sides,
        keep,
        progress=step / config.iterations,
        chunk_size=config.chunk_size,
        joint_batchnorm=config.joint_batchnorm,
    )
    run.step += 1
    return value.item()


def evaluate(run: Run, tests: Sequence[PatchSet]) -> dict[str, float]:
    """FPR@95 of the encoder as it is now on each held-out set, and their mean."""
    scores = {}
    for patchset in tests:
        pairs = np.asarray(patchset.test_pairs)[: run.config.most_evaluation_pairs]
        scores[patchset.name] = fpr_at_recall(
            *pair_distances(lambda p: describe_patches(run.encoder, p), patchset.patches, pairs)
        )
    return {**scores, "mean": float(np.mean(list(scores.values())))}


def _iterate(
    run: Run, tests: Sequence[PatchSet], out: Path, log: RunLog, display: Display, stopping: Callable[[], bool]
) -> dict[str, float]:
    """From the run's step to its last; returns the final evaluation."""
    config, evaluation_steps = run.config, run.config.evaluation_steps()
    last_saved, scores = time.monotonic(), dict[str, float]()
    while True:
        if tests and run.step in evaluation_steps:
            scores = _evaluate_and_keep_best(run, tests, out, log, display)
        if run.step == config.iterations:
            return scores
        try:
            value = iterate_once(run)
        except InputError as error:  # the loss refuses descriptors that are not finite
            raise TrainingStopped(_diverged(run, out, str(error))) from error
        if not np.isfinite(value):
            raise TrainingStopped(_diverged(run, out, f"the loss is {value}"))
        _count(run, value)
        display.advance(run.step, value, run.loss.report)
        if config.epoch_ends(run.step):
            line = _epoch_line(run)
            log.write("epoch", run.step, **line)
            display.scalars(run.step, line)
            run.sums, run.counted = {}, 0
        due = (
            run.step % config.checkpoint_every == 0
            if config.checkpoint_every
            else time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS
        )
        if due or stopping() or run.step == config.iterations:
            save_checkpoint(out / "checkpoints", run.step, run.state(log))
            last_saved = time.monotonic()
        if stopping():
            raise Interrupted(
                f"stopped at step {run.step} of {config.iterations}; go on with: sdgmnet train -o {out} --resume"
            )


def _count(run: Run, value: float) -> None:
    assert run.loss.report is not None
    for name, number in {"loss": value, **{k: v.item() for k, v in run.loss.report._asdict().items()}}.items():
        run.sums[name] = run.sums.get(name, 0.0) + number
    run.counted += 1


def _epoch_line(run: Run) -> dict[str, float]:
    """Means over the epoch's iterations, as the authors' logs, and the running statistics E_t, Std_t of Eq. (14)."""
    statistics = run.loss.statistics
    names = ("theta_pos_mean", "theta_pos_std", "theta_neg_mean", "theta_neg_std", "theta_rel_mean", "theta_rel_std")
    running = dict(zip(names, statistics.moments.flatten().tolist(), strict=True))
    running |= dict(zip(("power_pos", "power_neg"), statistics.powers.tolist(), strict=True))
    return {
        "learning_rate": run.config.learning_rate_at(run.step - 1),
        **{name: total / run.counted for name, total in run.sums.items()},
        **{f"running_{name}": value for name, value in running.items()},
    }


def _evaluate_and_keep_best(
    run: Run, tests: Sequence[PatchSet], out: Path, log: RunLog, display: Display
) -> dict[str, float]:
    scores = evaluate(run, tests)
    log.write("evaluation", run.step, fpr95=scores)
    display.evaluated(run.step, scores)
    # At step 0 there is nothing learned worth keeping.
    if run.step and scores["mean"] < run.best.get("mean", np.inf):
        run.best = {"step": run.step, **scores}
        save_encoder(run.encoder, out / "best.safetensors", _card(run, run.best))
    return scores


def _card(run: Run, scores: dict[str, Any]) -> dict[str, Any]:
    config = run.config
    return {
        "trained_on": [patchset.name for patchset in run.sampler.patchsets],
        "step": run.step,
        "iterations": config.iterations,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "loss": config.loss,
        "fpr95": scores,
        "versions": {"sdgmnet": __version__, "torch": torch.__version__},
    }


def _finish(run: Run, sources: Sources, last: dict[str, float], out: Path, display: Display) -> dict[str, Any]:
    """Last weights, the final figures and the angles that Fig. 2 is drawn from."""
    save_encoder(run.encoder, out / "last.safetensors", _card(run, last))
    if not sources.test:  # nothing to choose by: the last is the best there is
        save_encoder(run.encoder, out / "best.safetensors", _card(run, last))
    angles = measure_angles(run.encoder, run.sampler, run.loss, run.config)
    angles.save(out / "angles.npz")
    results = {
        "iterations": run.config.iterations,
        "fpr95_best": run.best,
        "fpr95_last": last,
        "evaluation_pairs": {
            one.name: len(np.asarray(one.test_pairs)[: run.config.most_evaluation_pairs]) for one in sources.test
        },
        "end_of_training": angles.summary(run.loss),
    }
    write_json(out / "results.json", results)
    display.finished(out, results)
    return results


def _diverged(run: Run, out: Path, reason: str) -> str:
    moments = ", ".join(f"{value:.4g}" for value in run.loss.statistics.moments.flatten().tolist())
    return (
        f"training stopped at step {run.step} of {run.config.iterations}: {reason} "
        f"(running mean and std of θ⁺, θ⁻, θʳ: {moments}; "
        f"running powers: {run.loss.statistics.powers.tolist()}). The last checkpoint in {out / 'checkpoints'} is kept; "
        f"try a lower --learning-rate."
    )


def _settle(config: TrainConfig, out: Path, resume: bool, console: Console) -> TrainConfig:
    """The configuration to run with: a new one, saved, or the saved one on resume."""
    path = out / "config.json"
    if not resume:
        if path.exists():
            raise InputError(f"{out} already holds a run: add --resume to go on with it, or choose another -o.")
        return replace(config, threads=config.threads or torch.get_num_threads())
    if not path.exists():
        raise InputError(f"{out} holds no run to resume: start it without --resume.")
    saved = TrainConfig.load(path)
    changed = differences(saved, config)
    for name, (before, after) in changed.items():
        console.print(f"--{name.replace('_', '-')}: saved {before}, given {after}")
    fixed = [name for name in changed if name not in FREE_ON_RESUME]
    if fixed:
        raise InputError(
            f"a resumed run keeps its configuration, but {', '.join(fixed)} differ from {path}: leave them out, "
            f"or start a new run with --init {out}."
        )
    return config


def fingerprints(sources: Sources) -> dict[str, str]:
    """What the run was trained on and measured with, to refuse to go on with anything else."""
    return {patchset.name: fingerprint(patchset) for patchset in [*sources.train, *sources.test]}


def fingerprint(patchset: PatchSet) -> str:
    """A digest of the point ids, the test pairs and a thousand of the patches: enough to notice another set."""
    digest = hashlib.sha256(f"{len(patchset)}".encode())
    digest.update(np.ascontiguousarray(patchset.point_id).tobytes())
    if patchset.test_pairs is not None:
        digest.update(np.ascontiguousarray(patchset.test_pairs).tobytes())
    for row in np.linspace(0, len(patchset) - 1, min(1000, len(patchset)), dtype=np.int64):
        digest.update(np.ascontiguousarray(patchset.patches[row]).tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yields a function: whether SIGINT or SIGTERM came. The step is finished and saved first; a second signal ends at once."""
    received: list[int] = []

    def remember(number: int, frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, remember)
    except ValueError:  # not the main thread: nobody sends it signals
        pass
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
