"""`sdgmnet train`: Algorithm 1 from the first step to the last, through kills and restarts to the same bits."""

import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from sdgmnet.data.patchset import PatchSet, batch_groups, scene_of, some_pairs
from sdgmnet.data.sources import Sources, open_sources
from sdgmnet.distributed import RankLost, SilentExit, World, open_world, was_restarted
from sdgmnet.encoders import ENCODERS, save_encoder
from sdgmnet.errors import InputError, Interrupted, TrainingStopped
from sdgmnet.loss.registry import own_file
from sdgmnet.report import progress_bars
from sdgmnet.storage import only_worker, read_json, reason_of, write_json
from sdgmnet.training.angles import measure_angles
from sdgmnet.training.checkpoint import checkpoints, load_checkpoint, ranks_of, save_checkpoint
from sdgmnet.training.config import FREE_ON_RESUME, TrainConfig, differences
from sdgmnet.training.display import Display
from sdgmnet.training.engine import choose_chunk, choose_engine
from sdgmnet.training.log import RunLog
from sdgmnet.training.run import Diverged, Run, choose_device, evaluate, iterate_once, report_of, running_of, start
from sdgmnet.version import __version__

# ---- training.signals


@contextmanager
def stop_signals(same_within: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Yields a function: whether SIGINT or SIGTERM came, so that the step can be finished and saved. A second ends at once.

    same_within: seconds in which a second one is the first again. Where a scheduler signals every process of a job, torchrun
    does, too.
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
    except ValueError:  # not the main thread: nobody sends it signals
        pass
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- training.loop


SECONDS_BETWEEN_CHECKPOINTS = 180
SECONDS_OF_ONE_SIGNAL = 5  # the scheduler's and torchrun's

Show = Callable[[Console, TrainConfig, Path, int], Display]


def train(
    config: TrainConfig,
    out: Path | str,
    *,
    resume: bool = False,
    sources: Sources | None = None,
    console: Console | None = None,
    show: Show = Display,
) -> dict[str, Any]:
    """Train, or go on training, in the folder `out`; returns what is also written there as results.json.

    `sources` are the opened sets where the caller has them; otherwise `config.data` and `config.holdout` say which. `show`
    makes what a person sees of the run, given its first step.

    Started by torchrun, all ranks call this; the first one alone writes and speaks, and all return the same.
    """
    with open_world(cuda=choose_device(config.device).type == "cuda") as world:
        console = (console or Console(stderr=True)) if world.is_rank_zero else Console(quiet=True)
        return _train(config, Path(out), resume, sources, console, show, world)


def _train(
    config: TrainConfig, out: Path, resume: bool, sources: Sources | None, console: Console, show: Show, world: World
) -> dict[str, Any]:
    with ExitStack() as held:
        world.on_rank_zero(lambda: world.rows(config.batch_size))
        if not resume and world.broadcast(was_restarted() and (out / "config.json").exists()):
            config, resume = _settled(config), True  # torchrun typed what was typed at first
        if resume:
            config = replace(config, loss=_with_whole_path(config.loss))
            world.on_rank_zero(lambda: _require_saved_config(config, out, console, world.size))
            world.on_rank_zero(lambda: held.enter_context(only_worker(out)))
        else:
            world.on_rank_zero(lambda: _refuse_old_run(out))
            config = _settled(config)
        with progress_bars(quiet=not console.is_terminal) as on_progress:
            opened = sources or world.rank_zero_first(lambda: open_sources(config.data, config.holdout, on_progress))
        run = world.on_all_ranks(lambda: start(config, opened.train, resume=resume, world=world))
        _require_equal_starts(run, opened)
        if resume:
            log = _restore(run, opened, out, console)
        else:  # nothing is written before the input proved good

            def begin() -> RunLog:
                held.enter_context(only_worker(out))
                _refuse_old_run(out)
                return _begin(run, opened, out)

            log = world.on_rank_zero(begin)
        shown = config if world.is_rank_zero else replace(config, tensorboard=False)
        same_within = 0 if world.size == 1 else SECONDS_OF_ONE_SIGNAL
        with show(console, shown, out, run.step) as display, stop_signals(same_within) as stopping:
            display.introduce(opened, run.device, run.sampler.plan(config.batch_size).left_out, world.size)
            try:
                last = _iterate(run, opened.test, out, log, display, stopping)
                return _finish(run, opened, last, out, display)
            except RankLost as lost:
                raise TrainingStopped(_what_was_lost(run, out, str(lost))) from lost
            except Diverged as reason:
                if not world.is_rank_zero:
                    raise SilentExit(TrainingStopped.exit_code) from reason
                raise TrainingStopped(_what_diverged(run, out, str(reason))) from reason


def _require_equal_starts(run: Run, sources: Sources) -> None:
    """Ranks on different machines may find other data under the same name, or another compiler."""
    if run.world.size > 1:
        beginning = [asdict(replace(run.config, data=())), fingerprints(sources), __version__, torch.__version__]
        do = "give all ranks the same data, options and versions"
        run.world.require_equal(json.dumps(beginning), "data or configuration", do)


def _settled(config: TrainConfig) -> TrainConfig:
    """What the machine and the working folder decide, written down, so that a resumed run finds the same."""
    places = tuple(name if name == "demo" else str(Path(name).resolve()) for name in config.data)
    device = choose_device(config.device)
    engine = choose_engine(config.engine, device, config.encoder)
    chunk_size = config.chunk_size or choose_chunk(engine, device) if ENCODERS[config.encoder].chunkable else None
    return replace(
        config,
        data=places,
        loss=_with_whole_path(config.loss),
        threads=config.threads or torch.get_num_threads(),
        engine=engine,
        chunk_size=chunk_size,
    )


def _with_whole_path(loss: str) -> str:
    """A loss of one's own by the place of its file, wherever one stands; any other as it is."""
    own = own_file(loss)
    return loss if own is None else f"{own[0].resolve()}:{own[1]}"


def _refuse_old_run(out: Path) -> None:
    """A run that was killed before its configuration was written has made no step: it is simply begun again."""
    if (out / "config.json").exists():
        raise InputError(f"{out} already holds a run: add --resume to go on with it, or choose another -o.")
    if any(not path.stem.endswith("-000000000") for path in checkpoints(out / "checkpoints")):
        raise InputError(f"{out} already holds a run, but without its config.json: choose another -o.")


def _require_saved_config(given: TrainConfig, out: Path, console: Console, ranks: int) -> None:
    """That of the run to resume: what is given otherwise is printed, and refused where it would change bits."""
    path = out / "config.json"
    if not path.exists():
        raise InputError(f"{out} holds no run to resume: start it without --resume.")
    changed = differences(TrainConfig.load(path), given)
    for name, (before, after) in changed.items():
        console.print(f"--{name.replace('_', '-')}: saved {before}, given {after}")
    free = set(FREE_ON_RESUME)
    if "threads" in changed:
        state, _ = load_checkpoint(out / "checkpoints")
        if ranks_of(state) != ranks or state.get("threads") == given.threads:
            free.add("threads")  # with another number of ranks bits change anyway, and the run then goes on as it is
    fixed = [name for name in changed if name not in free]
    if fixed:
        raise InputError(
            f"a resumed run keeps its configuration, but {', '.join(fixed)} differ from {path}: leave them out, "
            f"or start a new run with --init {out}."
        )


def _begin(run: Run, sources: Sources, out: Path) -> RunLog:
    """A new run's first files; it can be resumed from the moment its configuration is there."""
    log = RunLog(out / "log.jsonl")
    write_json(out / "data.json", fingerprints(sources))
    _write_checkpoint(run, log, out)
    run.config.save(out / "config.json")
    return log


def _restore(run: Run, sources: Sources, out: Path, console: Console) -> RunLog | None:
    """The first rank reads, all get the same."""
    world = run.world
    state: dict[str, Any] = world.broadcast(world.on_rank_zero(lambda: _read(sources, out, console)) or {})
    log_bytes = world.on_all_ranks(lambda: _take_over(run, state, out))
    if (ranks := ranks_of(state)) != world.size:
        console.print(f"Begun by {ranks} ranks, going on with {world.size}: equal up to rounding, not bit for bit.")
    console.print(f"Resuming at step {run.step} of {run.config.iterations}.")
    return world.on_rank_zero(lambda: RunLog(out / "log.jsonl", keep_bytes=log_bytes))


def _read(sources: Sources, out: Path, console: Console) -> dict[str, Any]:
    if read_json(out / "data.json") != fingerprints(sources):
        names = ", ".join(patchset.name for patchset in [*sources.train, *sources.test])
        raise InputError(
            f"the data changed since the run began ({names}): resume needs the same sets, see {out}/data.json."
        )
    state, complaints = load_checkpoint(out / "checkpoints")
    for complaint in complaints:
        console.print(f"[yellow]{complaint} Using the one before.[/]")
    return state


def _take_over(run: Run, state: dict[str, Any], out: Path) -> int:
    """The run as it was; returns how much of its log counts."""
    try:
        run.restore(state)
        ranks_of(state)
        return int(state["log_bytes"])
    except Exception as error:  # a checkpoint of another kind fails in whatever way its content leads to
        raise InputError(
            f"the checkpoint of step {state['step']} in {out} does not fit the run ({reason_of(error)}): start anew in "
            "another folder."
        ) from error


def _save(run: Run, log: RunLog | None, out: Path) -> None:
    """By the first rank, while the others wait: torchrun ends all ranks as soon as one has ended."""
    run.check_finite()
    run.world.on_rank_zero(lambda: None if log is None else _write_checkpoint(run, log, out))


def _write_checkpoint(run: Run, log: RunLog, out: Path) -> None:
    save_checkpoint(out / "checkpoints", run.step, {**run.state(), "log_bytes": log.synced_size()})


def _iterate(
    run: Run, tests: Sequence[PatchSet], out: Path, log: RunLog | None, display: Display, stopping: Callable[[], bool]
) -> dict[str, float]:
    """From the run's step to its last; returns the final evaluation. log: None where another rank writes."""
    config, evaluation_steps = run.config, run.config.evaluation_steps()
    last_saved, scores = time.monotonic(), dict[str, float]()
    while True:
        if tests and run.step in evaluation_steps:
            scores = _evaluate_and_keep_best(run, tests, out, log, display)
        if run.step == config.iterations:
            return scores
        value = iterate_once(run)
        display.advance(run.step, value, getattr(run.loss, "report", None))
        _count(run, value)
        if config.epoch_ends(run.step):
            line = _epoch_line(run)
            if log is not None:
                log.write("epoch", run.step, **line)
            display.scalars(run.step, line)
            run.sums, run.counted = {}, 0
        due = (
            run.step % config.checkpoint_every == 0
            if config.checkpoint_every
            else time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS
        )
        stops, due = run.world.any(stopping(), due)
        if due or stops or run.step == config.iterations:
            _save(run, log, out)
            last_saved = time.monotonic()
        if stops:
            if log is None:
                raise SilentExit(Interrupted.exit_code)
            where = f"stopped at step {run.step} of {config.iterations}"
            own = "" if own_file(config.loss) is None else f" --loss {config.loss}"
            raise Interrupted(f"{where}; go on with: sdgmnet train -o {out} --resume{own}")


def _count(run: Run, value: float) -> None:
    for name, number in {"loss": value, **report_of(run.loss)}.items():
        run.sums[name] = run.sums.get(name, 0.0) + number
    run.counted += 1


def _epoch_line(run: Run) -> dict[str, float]:
    """Means over the epoch's iterations, as the authors' logs, and the running statistics E_t, Std_t of Eq. (14)."""
    means = {name: total / run.counted for name, total in run.sums.items()}
    return {"learning_rate": run.config.learning_rate_at(run.step - 1), **means, **running_of(run.loss)}


def _evaluate_and_keep_best(
    run: Run, tests: Sequence[PatchSet], out: Path, log: RunLog | None, display: Display
) -> dict[str, float]:
    run.check_finite()
    scores = evaluate(run, tests)
    if log is not None:
        log.write("evaluation", run.step, fpr95=scores)
    display.evaluated(run.step, scores)
    # At step 0 there is nothing learned worth keeping.
    if run.step and scores["mean"] < run.best.get("mean", np.inf):
        run.best = {"step": run.step, **scores}
        if log is not None:
            save_encoder(run.encoder, out / "best.safetensors", _card(run, run.best))
    return scores


def _finish(run: Run, sources: Sources, last: dict[str, float], out: Path, display: Display) -> dict[str, Any]:
    """Last weights, the final figures and the angles that Fig. 2 is drawn from."""
    if run.world.is_rank_zero:
        save_encoder(run.encoder, out / "last.safetensors", _card(run, last))
        if not sources.test:  # nothing to choose by: the last is the best there is
            save_encoder(run.encoder, out / "best.safetensors", _card(run, last))
    angles = measure_angles(run.encoder, run.sampler, run.loss, run.config, run.world)
    results = {
        "iterations": run.config.iterations,
        "batch_size": run.config.batch_size,
        "fpr95_best": run.best,
        "fpr95_last": last,
        "evaluation_pairs": {one.name: len(some_pairs(one, run.config.most_evaluation_pairs)) for one in sources.test},
        "end_of_training": {**angles.summary(run.config), **running_of(run.loss)},
        "concern": angles.concern(run.config.batch_size),
    }
    if run.world.is_rank_zero:
        angles.save(out / "angles.npz")
        write_json(out / "results.json", results)
    display.finished(out, results)
    return results


def _card(run: Run, scores: dict[str, Any]) -> dict[str, Any]:
    config = run.config
    return {
        "trained_on": [patchset.name for patchset in run.sampler.patchsets],
        "scenes": sorted({scene_of(patchset) for patchset in run.sampler.patchsets}),
        "step": run.step,
        "iterations": config.iterations,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "loss": config.loss if own_file(config.loss) is None else Path(config.loss).name,
        "fpr95": scores,
        "versions": {"sdgmnet": __version__, "torch": torch.__version__},
    }


def _what_diverged(run: Run, out: Path, reason: str) -> str:
    statistics = ", ".join(f"{name} {value:.4g}" for name, value in running_of(run.loss).items())
    told = f" ({statistics})" if statistics else ""
    return (
        f"training stopped at step {run.step} of {run.config.iterations}: {reason}{told}. "
        f"The last checkpoint in {out / 'checkpoints'} is kept; try a lower --learning-rate."
    )


def _what_was_lost(run: Run, out: Path, reason: str) -> str:
    return (
        f"training ended at step {run.step} of {run.config.iterations}: {reason}. The last checkpoint in "
        f"{out / 'checkpoints'} is kept: start the ranks again with --resume, or let torchrun do it (--max-restarts)."
    )


def fingerprints(sources: Sources) -> list[list[str]]:
    """What the run was trained on and measured with, to refuse to go on with anything else."""
    return [[patchset.name, fingerprint(patchset)] for patchset in [*sources.train, *sources.test]]


def fingerprint(patchset: PatchSet) -> str:
    """A digest of the small arrays and a thousand of the patches: enough to notice another set."""
    digest = hashlib.sha256(f"{len(patchset)}".encode())
    for array in (patchset.point_id, patchset.test_pairs, patchset.conflicts):
        digest.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    if patchset.observations is not None:  # which patches may be in a batch together, and which were detected
        digest.update(
            f"{scene_of(patchset)}".encode(errors="surrogateescape")
            + np.ascontiguousarray(batch_groups(patchset)).tobytes()
        )
        if "detected" in (patchset.observations.dtype.names or ()):
            digest.update(np.ascontiguousarray(patchset.observations["detected"]).tobytes())
    for row in np.linspace(0, len(patchset) - 1, min(1000, len(patchset)), dtype=np.int64):
        digest.update(np.ascontiguousarray(patchset.patches[row]).tobytes())
    return digest.hexdigest()[:16]
