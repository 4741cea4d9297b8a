import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from reproduce import plan as planning
from reproduce import runner
from reproduce.ablation import ablation_runs, power_ratios, ratio_table, scores_of
from reproduce.groups import Group, make_group
from reproduce.plan import Budget, Planned, flat_settings, made_elsewhere, plan_method, plan_run
from reproduce.results import Result, concern, last_ten, read_result
from reproduce.runner import powers_of, run_plan
from reproduce.sweeps import sweep_runs
from reproduce.table1 import describe_with
from sdgmnet import storage as locks
from sdgmnet.data.patchset import PatchSet, some_pairs
from sdgmnet.errors import InputError, Interrupted
from sdgmnet.training import fit as loop
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import read_log
from sdgmnet.training.recipes import settings_of
from sdgmnet.training.run import Diverged, Run
from tests.conftest import blob_patches

QUIET = Console(quiet=True)
TINY = Budget(iterations=3, batch_size=8, checkpoints=3, checkpoint_pairs=60)


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return [make_group(name, (f"somewhere/{name}",), [blob_patches(30, 3, seed)]) for seed, name in enumerate("ABC")]


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of the trainings that are begun or resumed."""
    calls: list[str] = []
    original = runner.train

    def counted(config, out, **options):  # type: ignore[no-untyped-def]
        calls.append(f"{Path(out).name}{' resumed' if options['resume'] else ''}")
        return original(config, out, **options)

    monkeypatch.setattr(runner, "train", counted)
    return calls


@pytest.fixture(scope="module")
def whole(groups: list[Group], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that was run in one go."""
    out = tmp_path_factory.mktemp("whole")
    run(two(groups), out)
    return out


def two(groups: list[Group]) -> list[Planned]:
    return [plan_method(name, groups[0], groups, TINY, 0) for name in ("sdgmnet", "tfeat")]


def run(runs: list[Planned], out: Path) -> list[Result]:
    return run_plan(runs, out, describe_with, QUIET)


def scored(results: list[Result]) -> list[dict[str, object]]:
    """All but how long it took."""
    return [{**asdict(one), "seconds_per_iteration": None} for one in results]


def test_a_run_is_known_by_its_settings_and_its_data_wherever_it_lies(groups: list[Group]) -> None:
    one = plan_method("sdgmnet", groups[0], groups, TINY, 0)
    moved = [make_group(g.name, (f"elsewhere/{g.name}",), g.test) for g in groups]
    renamed = [make_group(f"{g.name}2", g.folders, g.test) for g in groups]
    assert plan_method("sdgmnet", moved[0], moved, TINY, 0).digest() == one.digest()
    assert plan_method("sdgmnet", renamed[0], renamed, TINY, 0).digest() == one.digest()
    others = [
        plan_method("sdgmnet", groups[0], groups, TINY, 1),
        plan_method("sdgmnet", groups[1], groups, TINY, 0),
        plan_method("hynet", groups[0], groups, TINY, 0),
        plan_method("sdgmnet", groups[0], groups[:2], TINY, 0),
        plan_method("sdgmnet", groups[0], groups, replace(TINY, iterations=5), 0),
        plan_run("alpha=1", "sdgmnet", "sdgm", groups[0], groups, TINY, 0, loss_options=("alpha=1",)),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 7
    patches = np.array(groups[0].test[0].patches)
    patches[0] ^= 1
    changed = [make_group("A", ("a",), [replace(groups[0].test[0], patches=patches)]), *groups[1:]]
    assert plan_method("sdgmnet", changed[0], changed, TINY, 0).digest() != one.digest()


def cut_from_photos(groups: list[Group], **changes: object) -> list[Group]:
    """The same groups as if their sets came from photos, and `changes` to the first set."""
    card = {"source": "photos", "method": 2, "options": {"size": 1600}}
    sets = [replace(g.train[0], origin={**card, "photos": g.name}) for g in groups]
    sets[0] = replace(sets[0], **changes)  # type: ignore[arg-type]
    return [make_group(g.name, g.folders, [one]) for g, one in zip(groups, sets, strict=True)]


def test_a_set_from_photos_is_known_by_them_and_rounding_is_told(groups: list[Group], tmp_path: Path) -> None:
    here = cut_from_photos(groups)
    patches = np.array(here[0].train[0].patches)
    patches[0] ^= 1
    there = cut_from_photos(groups, patches=patches)
    one, same = (plan_method("tfeat", made[0], made, TINY, 0) for made in (here, there))
    assert same.digest() == one.digest()
    (result,) = run([one], tmp_path)
    assert made_elsewhere([one], [result]) == "" and result.powers == []
    (known,) = run([same], tmp_path)
    assert known == result and made_elsewhere([same, same], [known, known]).startswith(" 1 of the 1 runs had sets")
    for changes in (
        {"origin": {**here[0].train[0].origin, "photos": "others"}},
        {"origin": {**here[0].train[0].origin, "options": {"size": 800}}},
    ):
        other = cut_from_photos(groups, **changes)
        assert plan_method("tfeat", other[0], other, TINY, 0).digest() != one.digest()
    own_pairs = cut_from_photos(groups, test_pairs=here[0].test[0].test_pairs)  # whoever drew them
    tested = [plan_method("tfeat", made[1], made, TINY, 0).digest() for made in (here, own_pairs)]
    assert tested[0] != tested[1]


def test_frameworks_and_sweeps_share_the_runs_of_table_1(groups: list[Group]) -> None:
    table = {plan_method(name, groups[0], groups, TINY, 0).digest() for name in ("sdgmnet", "hynet", "hardnet+frn")}
    ablation = ablation_runs(groups[:1], groups, TINY, 1)
    assert len(ablation) == len({one.digest() for one in ablation}) == 10
    assert table <= {one.digest() for one in ablation}
    sweep = sweep_runs("alpha", (0.8, 0.9), groups[0], groups, TINY, 1)
    assert [one.digest() in table for one in sweep] == [False, True]


def test_what_is_finished_is_not_trained_again(
    groups: list[Group], whole: Path, tmp_path: Path, trainings: list[str]
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(whole, out)
    first = run(two(groups), out)
    assert [one.config["encoder"] for one in first] == ["sdgmnet", "tfeat"] and trainings == []
    for one in two(groups):  # the result is all that is needed
        for path in one.find(out).iterdir():
            if path.name != "result.json":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    more = [*two(groups), plan_method("tfeat", groups[1], groups, TINY, 0)]
    assert run(more, out)[:2] == first and trainings == [more[2].folder(out).name]


def test_a_run_of_other_defaults_is_not_taken(groups: list[Group], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(whole, out)
    one = two(groups)[0]
    path = one.find(out) / "result.json"
    content = json.loads(path.read_text())
    content["config"] = {**content["config"], "momentum": 0.5, "a setting of old": 1}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"was trained with momentum = 0\.5, which is 0\.9 today: move it away"):
        run(two(groups), out)


def test_a_run_begun_with_other_defaults_does_not_go_on(groups: list[Group], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(whole, out)
    one = two(groups)[0]
    folder = one.find(out)
    (folder / "result.json").unlink()
    assert run([one], out)  # what the machine has settled is no change
    (folder / "result.json").unlink()
    replace(TrainConfig.load(folder / "config.json"), momentum=0.5).save(folder / "config.json")
    with pytest.raises(InputError, match=r"was trained with momentum = 0\.5, which is 0\.9 today"):
        run([one], out)


def test_an_interrupted_plan_goes_on_to_the_same_results(
    groups: list[Group], whole: Path, tmp_path: Path, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, done = loop.iterate_once, []

    def counted(state: Run) -> float:
        done.append(1)
        if len(done) == TINY.iterations + 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(state)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "iterate_once", counted)
        with pytest.raises(Interrupted, match="tfeat on A, seed 0: stopped at step 2 of 3; the same command goes on"):
            run(two(groups), tmp_path)
    assert scored(run(two(groups), tmp_path)) == scored(run(two(groups), whole))
    names = [one.folder(tmp_path).name for one in two(groups)]
    assert trainings == [names[0], names[1], f"{names[1]} resumed"]
    for one in two(groups):
        logs = [(one.find(out) / "log.jsonl").read_text() for out in (whole, tmp_path)]
        assert logs[0] == logs[1]


@pytest.mark.skipif(locks.fcntl is None, reason="this system has no flock")
@pytest.mark.parametrize("finishes", [True, False])
def test_what_another_process_trains_is_waited_for_or_taken_over(
    groups: list[Group],
    whole: Path,
    tmp_path: Path,
    trainings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    finishes: bool,
) -> None:
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_LOOKS", 0.05)
    first, second = two(groups)
    held = threading.Event()

    def other() -> None:
        """Has the first run until the second is done; then it has finished it, or gives up."""
        with locks.holding(tmp_path / "runs" / f".{first.digest()}.lock") as mine:
            assert mine
            held.set()
            while second.result(tmp_path) is None:
                time.sleep(0.05)
            if finishes:
                shutil.copytree(first.find(whole), first.folder(tmp_path))

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    assert held.wait(60)
    words = io.StringIO()
    results = run_plan([first, second], tmp_path, describe_with, Console(file=words, width=200))
    thread.join(60)
    assert scored(results) == scored(run([first, second], whole))
    assert trainings == [one.folder(tmp_path).name for one in ([second] if finishes else [second, first])]
    assert ("sdgmnet on A, seed 0 (trained by another process): FPR@95" in words.getvalue()) == finishes
    assert "run 2 of 2 done, about 0 s left" in words.getvalue()
    assert list((tmp_path / "runs").glob(".*.lock")) == []


def test_a_run_whose_last_evaluation_was_cut_off_is_only_evaluated(
    groups: list[Group], whole: Path, tmp_path: Path, trainings: list[str]
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (two(groups)[1].find(tmp_path) / "result.json").unlink()
    assert scored(run(two(groups), tmp_path)) == scored(run(two(groups), whole)) and trainings == []


def test_what_was_begun_with_other_sets_does_not_go_on(groups: list[Group], tmp_path: Path) -> None:
    """Neither a training nor its last evaluation alone: the record would be of two cuts of the photos."""
    here = cut_from_photos(groups)
    patches = np.array(here[0].train[0].patches)
    patches[0] ^= 1
    there = cut_from_photos(groups, patches=patches)
    one, same = (plan_method("tfeat", made[1], made, TINY, 0) for made in (here, there))
    run([one], tmp_path)
    (one.find(tmp_path) / "result.json").unlink()
    with pytest.raises(InputError, match="was begun with other sets than those that are there now: move it away"):
        run([same], tmp_path)
    assert one.result(tmp_path) is None and run([one], tmp_path)


def test_what_is_finished_goes_before_what_was_begun_under_another_name(
    groups: list[Group], whole: Path, tmp_path: Path, trainings: list[str]
) -> None:
    """As where a figure was interrupted, and the records of others were copied in then."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    one = two(groups)[0]
    begun = tmp_path / "runs" / f"af+pa-A-s0-{one.digest()}"
    begun.mkdir()
    assert sorted([begun, one.find(tmp_path)])[0] == begun
    shutil.copy(one.find(whole) / "config.json", begun)
    assert one.find(tmp_path) == one.folder(tmp_path) and run([one], tmp_path) and trainings == []


def test_a_record_that_lacks_scores_is_refused(groups: list[Group], whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    one = two(groups)[0]
    path = one.find(tmp_path) / "result.json"
    content = json.loads(path.read_text())
    for damage in ({"last": {}}, {"checkpoints": []}, {"last": {**content["last"], "blobs1": 7.5}}):
        path.write_text(json.dumps({**content, **damage}))
        with pytest.raises(InputError, match="lacks scores, or holds some that are none: remove it"):
            one.result(tmp_path)
    path.unlink()
    assert scored(run([one], tmp_path)) == scored(run([one], whole))


def test_a_run_that_learned_nothing_is_told(groups: list[Group], whole: Path) -> None:
    (result,) = run(two(groups)[:1], whole)
    assert concern(replace(result, last=dict.fromkeys(result.last, 0.3))) is None
    told = concern(replace(result, last=dict.fromkeys(result.last, 0.95)))
    assert told == "sdgmnet on A, seed 0: came to its end, but with 95.0 % (chance is 95 %), so it has learned nothing."
    assert concern(replace(result, last={}, diverged="at step 2")) == "sdgmnet on A, seed 0: at step 2"


def test_a_start_that_was_cut_off_is_begun_anew(groups: list[Group], tmp_path: Path) -> None:
    one = two(groups)[1]
    checkpoint = one.folder(tmp_path) / "checkpoints/checkpoint-000000000.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half")
    assert run([one], tmp_path)[0].diverged is None


def test_the_result_is_what_the_log_and_all_pairs_say(groups: list[Group], whole: Path) -> None:
    one = two(groups)[0]
    (result,) = run([one], whole)
    lines = read_log(one.find(whole) / "log.jsonl", "evaluation")[1:]
    assert [line["step"] for line in result.checkpoints] == [line["step"] for line in lines] == [1, 2, 3]
    assert result.checkpoints[2]["fpr95"]["blobs1"] == lines[2]["fpr95"]["blobs1"]
    assert result.checkpoint_pairs == {"blobs1": 30, "blobs2": 30}
    assert result.pairs == {group.test[0].name: group.pairs for group in groups[1:]}
    assert result.trained_on == ["blobs0"] and set(result.last) == {"blobs1", "blobs2"}
    assert not (one.find(whole) / "checkpoints").exists()


def test_a_method_that_diverges_is_a_result_too(
    groups: list[Group], whole: Path, tmp_path: Path, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.iterate_once

    def broken(state: Run) -> float:
        if state.config.encoder == "tfeat" and state.step == 1:
            raise Diverged("the loss is nan")
        return original(state)

    monkeypatch.setattr(loop, "iterate_once", broken)
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(two(groups)[1].find(tmp_path))
    results = run(two(groups), tmp_path)
    assert "step 1 of 3: the loss is nan" in str(results[1].diverged) and str(tmp_path) not in str(results[1].diverged)
    run(two(groups), tmp_path)
    assert len(trainings) == 1
    scores = scores_of(two(groups), results, 1)
    assert scores["tfeat"].ways["last"] == [] and len(scores["tfeat"].diverged) == 1
    expected = np.mean(list(last_ten(results[0], groups[1:]).values()))
    assert scores["sdgmnet"].ways["last ten"] == [pytest.approx(expected)]


def test_a_damaged_or_foreign_result_is_refused(groups: list[Group], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for content, said in (("{", "not valid JSON"), ('{"name": 1}', "not a result of this version")):
        (folder / "result.json").write_text(content)
        with pytest.raises(InputError, match=said):
            read_result(folder, "0")
    Result("a", "1", {"encoder": "tfeat", "batch_size": 8}, [], [], {}, {}, {}, 1.0).save(folder)
    with pytest.raises(InputError, match="of another run"):
        read_result(folder, "0")
    assert json.loads((folder / "result.json").read_text())["digest"] == "1"


def test_a_batch_that_no_group_can_fill_is_refused_before_training(groups: list[Group], tmp_path: Path) -> None:
    runs = [plan_method("sdgmnet", group, groups, replace(TINY, batch_size=500), 0) for group in groups]
    with pytest.raises(InputError, match=r"group A: .*500"):
        run(runs, tmp_path)
    assert not list(tmp_path.rglob("config.json"))


def test_a_run_that_ends_elsewhere_while_steps_are_timed(
    groups: list[Group], whole: Path, tmp_path: Path, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(groups)

    def time_steps(one: Planned) -> float:
        assert one == first
        shutil.copytree(second.find(whole), second.folder(tmp_path))
        path = second.folder(tmp_path) / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds_per_iteration": 0.0}))
        return 1.0

    monkeypatch.setattr(planning, "time_steps", time_steps)
    assert scored(run([first, second], tmp_path)) == scored(run([first, second], whole))
    assert trainings == [first.folder(tmp_path).name]


def test_waiting_for_others_can_be_stopped(
    groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    (one, _), lock = two(groups), tmp_path / "runs"
    monkeypatch.setattr(planning, "time_steps", lambda one: 1.0)
    monkeypatch.setattr(runner.time, "sleep", interrupted)
    with (
        locks.holding(lock / f".{one.digest()}.lock"),
        pytest.raises(Interrupted, match="while other processes train; the same command goes on"),
    ):
        run([one], tmp_path)


def test_the_estimate_counts_evaluations_and_what_is_left(
    groups: list[Group], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = plan_method("tfeat", groups[0], groups, replace(TINY, checkpoint_pairs=20), 0)

    def evaluate(state: Run, tests: Sequence[PatchSet]) -> dict[str, float]:
        time.sleep(0.02 * sum(len(some_pairs(test, state.config.most_evaluation_pairs)) for test in tests))
        return {}

    monkeypatch.setattr(planning, "evaluate", evaluate)
    pairs, count = groups[1].pairs, len(one.config.evaluation_steps())
    expected = 0.02 * (count * 20 + 2 * pairs) / TINY.iterations  # ten pairs of both sets each time, all at the end
    assert expected < planning.time_steps(one) < expected + 3
    folder = one.folder(tmp_path) / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "checkpoint-000000002.pt").write_bytes(b"")
    rates = {planning.pace_key(one.config): 7.0}
    (line,) = planning.plan_content([one], tmp_path, rates)
    assert (line["state"], line["seconds"]) == ("to do", 21.0)  # a start that was cut off is begun anew
    one.config.save(folder.parent / "config.json")
    (folder / "checkpoint-old.pt").write_bytes(b"")
    (line,) = planning.plan_content([one], tmp_path, rates)
    assert (line["state"], line["seconds"], line["folder"]) == ("begun", 7.0, one.folder(tmp_path).name)
    (done,) = planning.plan_content(two(groups)[1:], whole, {})
    assert (done["state"], done["seconds"]) == ("done", 0.0)


def test_ratios_of_powers_are_those_after_the_warm_up(groups: list[Group], tmp_path: Path) -> None:
    """Section V-D: the mean over the epochs; while warming up all weights are 1, and so is the ratio."""
    budget = replace(TINY, iterations=40)
    runs = [plan_run(name, name, "native", groups[0], groups, budget, 0) for name in ("l2-pa", "l2+pa", "s-pa")]
    powers = [(8.0, 8.0)] * 4 + [(4.0, 2.0), (3.0, 4.0)]  # 10 % of 40 iterations are the warm-up
    lines = [
        {"kind": "epoch", "step": step, "power_pos": pos, "power_neg": neg}
        for step, (pos, neg) in enumerate(powers, start=1)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(line) for line in [*lines, {"kind": "epoch", "step": 7, "loss": 1.0}]))
    empty = Result("a", "1", {}, [], [], {}, {}, {}, 1.0)
    results = [replace(empty, powers=powers_of(log)), replace(empty, powers=powers_of(log)), empty]
    assert power_ratios(runs, results) == {"theta": [], "s": [], "l2": [(2.0 + 0.75) / 2], "af": []}
    late = power_ratios(runs, results, since=5 / 40)
    assert late["l2"] == [0.75]
    assert ratio_table({**late, "l2": [1.0, 2.0]}, late)[1][2] == [
        "&l₂ −PA",
        "1.500 (1.000 to 2.000)",
        "0.750",
        "2",
        "1.02",
    ]


def test_committed_records_are_still_found() -> None:
    """Records hold SDGM's options beside the other settings, and their digests are made of that form."""
    known = sorted((Path(__file__).parents[2] / "reproduce" / "records").glob("**/result.json"))
    assert len(known) > 50
    for path in known:
        recorded = json.loads(path.read_text())["config"]
        settings = flat_settings(TrainConfig.from_dict(recorded, str(path)))
        assert {name: json.loads(json.dumps(settings[name])) for name in recorded} == recorded


@pytest.mark.parametrize(
    ("recipe", "preset", "changes", "digest"),
    [
        ("paper", "native", {}, "4f59172427b2"),
        ("l2-pa", "native", {}, "0322f8f5d616"),
        ("hynet", "sdgm", {}, "b99690730372"),
        ("sdgmnet", "sdgm", {"loss_options": ("margin=0.7",)}, "4f65e04da923"),
        ("sdgmnet", "sdgm", {"loss_options": ("alpha=1",)}, "2c385f7020e2"),
        ("sdgmnet", "sdgm", {"loss_options": ("alpha=0.9",)}, "4f59172427b2"),
    ],
)
def test_digests_stay(recipe: str, preset: str, changes: dict[str, Any], digest: str) -> None:
    """As they were when the committed records were made."""
    group = SimpleNamespace(train_identity=[["x", "1"]], test_identity=[["y", "2"]])
    config = replace(settings_of(recipe, preset), **{"iterations": 4000, **changes})
    assert Planned("any", config, group, (group,)).digest() == digest  # type: ignore[arg-type]
