"""Training from the first step to the last. An interrupted and resumed run gives the same bits."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from sdgmnet.data.patchset import PatchSet, scene_of, some_pairs
from sdgmnet.data.sources import Sources, open_sources
from sdgmnet.data.window import at_window
from sdgmnet.distributed import RankLost, SilentExit, World, open_world, was_restarted
from sdgmnet.encoders import save_encoder
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError, Interrupted, TrainingStopped
from sdgmnet.heap import reused_heap
from sdgmnet.registry import own_file
from sdgmnet.report import progress_bars
from sdgmnet.storage import only_worker, read_json, reason_of, write_json
from sdgmnet.training.angles import measure_angles
from sdgmnet.training.checkpoint import fingerprints, load_checkpoint, ranks_of, save_checkpoint
from sdgmnet.training.config import FREE_ON_RESUME, TrainConfig, differences
from sdgmnet.training.display import Display
from sdgmnet.training.folder import absolute_loss, absolute_teacher, option_of, require_new_folder, require_unchanged
from sdgmnet.training.log import RunLog
from sdgmnet.training.run import (
    Diverged,
    Run,
    choose_device,
    evaluate,
    inference_engine,
    iterate_once,
    report_of,
    resolve_hardware,
    running_of,
    start,
)
from sdgmnet.training.triplets import TRIPLETS, hardest_triplets, save_triplets
from sdgmnet.version import __version__

SECONDS_BETWEEN_CHECKPOINTS = 180
SECONDS_BETWEEN_SIGNALS = 5  # a scheduler and torchrun both signal the ranks: within this time it counts as one signal


def train(
    config: TrainConfig,
    out: Path | str,
    *,
    resume: bool = False,
    sources: Sources | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, or continue with `resume`, and return the final figures, which are also in OUT/results.json.

    Started by torchrun, all ranks call this and return the same. Only rank 0 writes and prints.
    """
    out, device = Path(out), choose_device(config.device)
    with open_world(cuda=device.type == "cuda") as world, ExitStack() as held:
        console = (console or Console(stderr=True)) if world.is_rank_zero else Console(quiet=True)
        resume = resume or world.broadcast(was_restarted() and (out / "config.json").exists())
        config = resolve_config(config, out, resume, device, world, console)
        if resume:
            world.on_rank_zero(held.enter_context, only_worker(out))
        sources = sources or open_data(config, console, world)
        run = build(config, sources, resume, device, world)
        if not resume:  # nothing is written before the input is known to be valid
            world.on_rank_zero(held.enter_context, only_worker(out))
        log = restore(run, sources, out, console) if resume else begin(run, sources, out)
        shown = config if world.is_rank_zero else replace(config, tensorboard=False, wandb=False)
        display = held.enter_context(Display(console, shown, out, run.step))
        stopping = held.enter_context(stop_signals(SECONDS_BETWEEN_SIGNALS if world.size > 1 else 0))
        display.introduce(sources, run.sampler.window, device, run.sampler.plan(config.batch_size).left_out, world.size)
        if not config.recompute:  # which saves memory
            held.enter_context(reused_heap())
        with explain_failures(run, out):
            scores = fit(run, sources.test, out, log, display, stopping)
            return finish(run, sources, scores, out, display)


# Stages


def resolve_config(
    config: TrainConfig, out: Path, resume: bool, device: torch.device, world: World, console: Console
) -> TrainConfig:
    """The configuration with everything that machine and working folder decide. A resumed run keeps its own."""
    world.on_rank_zero(world.rows, config.batch_size)
    config = absolute_teacher(absolute_loss(config))
    if not resume or was_restarted():  # torchrun restarts a run with the options that began it
        data = tuple(name if name == "demo" else str(Path(name).resolve()) for name in config.data)
        config = world.on_all_ranks(resolve_hardware, replace(config, data=data), device)
    if resume:
        world.on_rank_zero(require_saved_config, config, out, console, world.size)
    else:
        world.on_rank_zero(require_new_folder, out)
    return config


def open_data(config: TrainConfig, console: Console, world: World) -> Sources:
    """Rank 0 first, which may convert or download; the others find the result."""
    with progress_bars(quiet=console.quiet) as on_progress:
        return world.rank_zero_first(open_sources, config.data, config.holdout, on_progress)


def build(config: TrainConfig, sources: Sources, resume: bool, device: torch.device, world: World) -> Run:
    """A run at step 0, the same on all ranks: machines may have other data under the same name, or no compiler."""
    run = world.on_all_ranks(start, config, sources.train, device=device, resume=resume, world=world)
    if world.size > 1:
        content = [
            asdict(replace(config, data=())),
            fingerprints(sources, config.teacher),
            __version__,
            torch.__version__,
        ]
        do = "give all ranks the same data, options and versions"
        world.require_equal(json.dumps(content), "data or configuration", do)
    return run


def begin(run: Run, sources: Sources, out: Path) -> RunLog:
    """The first files of a new run. It can be resumed as soon as config.json exists."""

    def write() -> RunLog:
        require_new_folder(out)
        log = RunLog(out / "log.jsonl")
        write_json(out / "data.json", fingerprints(sources, run.config.teacher))
        write_checkpoint(run, log, out)
        run.config.save(out / "config.json")
        return log

    return run.world.on_rank_zero(write) or RunLog(None)


def restore(run: Run, sources: Sources, out: Path, console: Console) -> RunLog:
    """Load the newest valid checkpoint: rank 0 reads it, all ranks get it."""
    world = run.world
    state: dict[str, Any] = world.broadcast(
        world.on_rank_zero(read_state, sources, run.config.teacher, out, console) or {}
    )
    log_bytes = world.on_all_ranks(apply_state, run, state, out)
    if (ranks := ranks_of(state)) != world.size:
        console.print(f"Started with {ranks} ranks, resumed with {world.size}: equal up to rounding, not bit for bit.")
    console.print(f"Resuming at step {run.step} of {run.config.iterations}.")
    return world.on_rank_zero(RunLog, out / "log.jsonl", log_bytes) or RunLog(None)


def fit(
    run: Run, tests: Sequence[PatchSet], out: Path, log: RunLog, display: Display, stopping: Callable[[], bool]
) -> dict[str, float]:
    """From the current step to the last; returns the final evaluation."""
    config, evaluation_steps = run.config, run.config.evaluation_steps()
    last_saved, scores = time.monotonic(), dict[str, float]()
    while True:
        if tests and run.step in evaluation_steps:
            scores = evaluate_and_keep_best(run, tests, out, log, display)
        if run.step == config.iterations:
            return scores
        value = iterate_once(run)
        display.advance(run.step, value, getattr(run.loss, "report", None))
        add_to_epoch(run, value)
        if config.epoch_ends(run.step):
            end_epoch(run, log, display)
        stops, due = run.world.any(stopping(), is_checkpoint_due(run, last_saved))
        if due or stops or run.step == config.iterations:
            save(run, log, out)
            last_saved = time.monotonic()
        if stops:
            raise_interrupted(run, out)


def finish(run: Run, sources: Sources, scores: dict[str, float], out: Path, display: Display) -> dict[str, Any]:
    """Write the last weights, the final figures, and the angles that Fig. 2 is drawn from."""
    config, is_writer = run.config, run.world.is_rank_zero
    if is_writer:
        save_encoder(run.encoder, out / "last.safetensors", card(run, scores))
        if not sources.test:  # without an evaluation, the last weights are the best
            save_encoder(run.encoder, out / "best.safetensors", card(run, scores))
    display.measuring()
    angles = measure_angles(run.encoder, run.sampler, run.loss, config, run.world)
    results = {
        "iterations": config.iterations,
        "batch_size": config.batch_size,
        "fpr95_best": run.best,
        "fpr95_last": scores,
        "evaluation_pairs": {one.name: len(some_pairs(one, config.most_evaluation_pairs)) for one in sources.test},
        "end_of_training": {**angles.summary(config), **running_of(run.loss)},
        "concern": angles.concern(config.batch_size, config.iterations),
    }
    if is_writer:
        angles.save(out / "angles.npz")
        write_json(out / "results.json", results)
    display.finished(out, results)
    return results


# Of resolve_config


def require_saved_config(given: TrainConfig, out: Path, console: Console, ranks: int) -> None:
    """Print how the given configuration differs from the saved one; InputError if that would change bits."""
    path = out / "config.json"
    if not path.exists():
        raise InputError(f"{out} has no run to resume (no config.json): check -o, or start a new run without --resume.")
    saved, free = TrainConfig.load(path), set(FREE_ON_RESUME)
    changed = differences(saved, given)
    if "threads" in changed:
        state, _ = load_checkpoint(out / "checkpoints")
        if ranks_of(state) != ranks or state.get("threads") == given.threads:
            free.add("threads")  # another number of ranks changes bits anyway
    require_unchanged(saved, given, out, free)
    for name, (before, after) in changed.items():
        console.print(f"{option_of(name)}: saved {before}, given {after}")


# Of restore


def read_state(sources: Sources, teacher: str | None, out: Path, console: Console) -> dict[str, Any]:
    if read_json(out / "data.json") != fingerprints(sources, teacher):
        names = ", ".join([*(patchset.name for patchset in [*sources.train, *sources.test]), *filter(None, [teacher])])
        raise InputError(f"the data changed since the run started ({names}): resume with the sets of {out}/data.json.")
    state, complaints = load_checkpoint(out / "checkpoints")
    for complaint in complaints:
        console.print(f"[yellow]{complaint} Using the one before.[/]")
    return state


def apply_state(run: Run, state: dict[str, Any], out: Path) -> int:
    """Restore the run; returns the valid length of its log in bytes."""
    try:
        run.restore(state)
        ranks_of(state)
        return int(state["log_bytes"])
    except Exception as error:  # a checkpoint with other content can raise anything
        raise InputError(
            f"the checkpoint of step {state['step']} in {out} does not match the run ({reason_of(error)}): start again in "
            "another folder."
        ) from error


# Of fit


def evaluate_and_keep_best(
    run: Run, tests: Sequence[PatchSet], out: Path, log: RunLog, display: Display
) -> dict[str, float]:
    run.check_finite()
    display.evaluating(run.step, tests)
    scores = evaluate(run, tests)
    log.write("evaluation", run.step, fpr95=scores)
    display.evaluated(run.step, scores)
    if run.step and scores["mean"] < run.best.get("mean", np.inf):  # at step 0 nothing has been learned
        run.best = {"step": run.step, **scores}
        if run.world.is_rank_zero:
            save_encoder(run.encoder, out / "best.safetensors", card(run, run.best))
    if run.world.is_rank_zero:
        keep_hardest(run, tests[0], out / TRIPLETS)
    return scores


def keep_hardest(run: Run, patchset: PatchSet, path: Path) -> None:
    """The hardest triplets of a held-out set, to look at while the run goes on."""
    window = run.encoder.window
    describe = at_window(partial(describe_patches, run.encoder, engine=inference_engine(run)), patchset, window)
    if triplets := hardest_triplets(describe, patchset, run.config.loss_setting("min_negative_angle")):
        save_triplets(patchset, triplets, window, run.step, path)


def add_to_epoch(run: Run, value: float) -> None:
    for name, number in {"loss": value, **report_of(run.loss)}.items():
        run.sums[name] = run.sums.get(name, 0.0) + number
    run.counted += 1


def end_epoch(run: Run, log: RunLog, display: Display) -> None:
    """Log means over the epoch's iterations, as the authors do, and the running statistics E_t, Std_t of Eq. (14)."""
    means = {name: total / run.counted for name, total in run.sums.items()}
    line = {"learning_rate": run.config.learning_rate_at(run.step - 1), **means, **running_of(run.loss)}
    log.write("epoch", run.step, **line)
    display.scalars(run.step, line)
    run.sums, run.counted = {}, 0


def is_checkpoint_due(run: Run, last_saved: float) -> bool:
    if run.config.checkpoint_every:
        return run.step % run.config.checkpoint_every == 0
    return time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS


def save(run: Run, log: RunLog, out: Path) -> None:
    """Write a checkpoint while the other ranks wait: torchrun ends all ranks as soon as one has ended."""
    run.check_finite()
    run.world.on_rank_zero(write_checkpoint, run, log, out)


def write_checkpoint(run: Run, log: RunLog, out: Path) -> None:
    save_checkpoint(out / "checkpoints", run.step, {**run.state(), "log_bytes": log.synced_size()})


def card(run: Run, scores: dict[str, Any]) -> dict[str, Any]:
    """What is known of the weights, for the JSON file beside them. What --init or --teacher saw, these weights saw, too."""
    config, sets = run.config, [patchset.name for patchset in run.sampler.patchsets]
    return {
        "trained_on": sets + [name for name in run.inherited.get("trained_on", []) if name not in sets],
        "scenes": sorted(
            {scene_of(patchset) for patchset in run.sampler.patchsets} | {*run.inherited.get("scenes", [])}
        ),
        "step": run.step,
        "iterations": config.iterations,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "loss": config.loss if own_file(config.loss) is None else Path(config.loss).name,
        "fpr95": scores,
        "versions": {"sdgmnet": __version__, "torch": torch.__version__},
    }


# Interruptions and failures


@contextmanager
def stop_signals(same_within: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether SIGINT or SIGTERM was received, so that a step can be finished and saved.

    A second signal stops at once, unless it follows the first within `same_within` seconds.
    """
    received: list[float] = []

    def remember(number: int, frame: Any) -> None:
        received.append(time.monotonic())
        if len(received) > 1 and received[-1] - received[0] >= same_within:
            raise KeyboardInterrupt

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, remember)
    except ValueError:  # not the main thread, which alone receives signals
        pass
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_interrupted(run: Run, out: Path) -> None:
    if not run.world.is_rank_zero:
        raise SilentExit(Interrupted.exit_code)
    loss = "" if own_file(run.config.loss) is None else f" --loss {run.config.loss}"
    raise Interrupted(
        f"stopped at step {run.step} of {run.config.iterations}; continue with: sdgmnet train -o {out} --resume{loss}"
    )


@contextmanager
def explain_failures(run: Run, out: Path) -> Iterator[None]:
    """Report divergence and lost ranks with the step and the last checkpoint."""
    try:
        yield
    except RankLost as lost:
        raise TrainingStopped(
            f"training stopped at step {run.step} of {run.config.iterations}: {lost}. The last checkpoint in "
            f"{out / 'checkpoints'} is kept: start the ranks again with --resume, or let torchrun do it (--max-restarts)."
        ) from lost
    except Diverged as reason:
        if not run.world.is_rank_zero:
            raise SilentExit(TrainingStopped.exit_code) from reason
        statistics = ", ".join(f"{name} {value:.4g}" for name, value in running_of(run.loss).items())
        raise TrainingStopped(
            f"training stopped at step {run.step} of {run.config.iterations}: {reason}"
            f"{f' ({statistics})' if statistics else ''}. The last checkpoint in {out / 'checkpoints'} is kept; try a lower "
            "--learning-rate."
        ) from reason
