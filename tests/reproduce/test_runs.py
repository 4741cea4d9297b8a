"""Planned runs: identity, sharing, resuming, results, and which runs are comparable."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reproduce import runner
from reproduce.ablation import ablation_runs, power_ratios, ratio_table, scores_of
from reproduce.groups import Group, make_group
from reproduce.results import Result, compared, concerns, differing_scenes, last, last_ten, read_result, scenes_left_out
from reproduce.runner import read_powers, run_plan
from reproduce.runs import Planned, data_notes, groups_tested, plan_method, plan_run, require_comparable
from reproduce.sweeps import sweep_runs
from sdgmnet import storage
from sdgmnet.data.patchset import PatchSet, some_pairs
from sdgmnet.errors import InputError, Interrupted
from sdgmnet.training import fit
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import read_log
from sdgmnet.training.recipes import settings_of
from sdgmnet.training.run import Diverged, Run
from tests.conftest import blob_patches
from tests.reproduce.helpers import CARD, TINY, cut_from_photos, scored, three_groups, two


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return three_groups()


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
def finished(groups: list[Group], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that was run in one go."""
    out = tmp_path_factory.mktemp("finished")
    run_plan(two(groups), out)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def changed_patches(groups: list[Group]) -> np.ndarray:
    patches = np.array(groups[0].train[0].patches)
    patches[0] ^= 1
    return patches


def digest(groups: list[Group], place: int = 0, method: str = "sdgmnet", budget: Any = TINY, seed: int = 0) -> str:
    return plan_method(method, groups[place], groups, budget, seed).digest()


def test_a_run_is_identified_by_its_settings_and_data(groups: list[Group]) -> None:
    one = digest(groups)
    assert digest([make_group(g.name, (f"elsewhere/{g.name}",), g.test) for g in groups]) == one
    assert digest([make_group(f"{g.name}2", g.folders, g.test) for g in groups]) == one
    alpha = plan_run("alpha=1", "sdgmnet", "sdgm", groups[0], groups, TINY, 0, loss_options=("alpha=1",))
    others = [digest(groups, seed=1), digest(groups, 1), digest(groups, method="hynet"), digest(groups[:2])]
    others += [digest(groups, budget=replace(TINY, iterations=5)), alpha.digest()]
    changed = make_group("A", ("a",), [replace(groups[0].test[0], patches=changed_patches(groups))])
    others.append(digest([changed, *groups[1:]]))
    assert len({one, *others}) == 8


@pytest.mark.parametrize(
    ("recipe", "preset", "options", "expected"),
    [
        ("paper", "native", (), "4f59172427b2"),
        ("l2-pa", "native", (), "0322f8f5d616"),
        ("hynet", "sdgm", (), "b99690730372"),
        ("sdgmnet", "sdgm", ("margin=0.7",), "4f65e04da923"),
        ("sdgmnet", "sdgm", ("alpha=1",), "2c385f7020e2"),
        ("sdgmnet", "sdgm", ("alpha=0.9",), "4f59172427b2"),
    ],
)
def test_digests_are_those_of_the_committed_records(
    recipe: str, preset: str, options: tuple[str, ...], expected: str
) -> None:
    group: Any = SimpleNamespace(train_identity=[["x", "1"]], test_identity=[["y", "2"]])
    config = replace(settings_of(recipe, preset), iterations=4000)
    config = replace(config, loss_options=options) if options else config
    assert Planned("any", config, group, (group,)).digest() == expected


def test_a_set_cut_from_photos_is_identified_by_them(groups: list[Group], tmp_path: Path) -> None:
    here = cut_from_photos(groups)
    there = cut_from_photos(groups, patches=changed_patches(here))
    one, same = (plan_method("tfeat", made[0], made, TINY, 0) for made in (here, there))
    assert same.digest() == one.digest()
    (result,) = run_plan([one], tmp_path)
    assert data_notes([one], [result]) == "" and result.powers == []
    (known,) = run_plan([same], tmp_path)
    assert known == result and data_notes([same, same], [known, known]).startswith(" 1 of the 1 runs used sets")
    for change in ({"photos": "others"}, {"options": {"size": 800}}):
        other = cut_from_photos(groups, origin={**here[0].train[0].origin, **change})
        assert digest(other, method="tfeat") != one.digest()
    own_pairs = cut_from_photos(groups, test_pairs=here[0].test[0].test_pairs)  # whoever drew them
    assert digest(own_pairs, 1) != digest(here, 1)
    # A begun run does not go on with another cut, neither in training nor in its last evaluation.
    (one.find(tmp_path) / "result.json").unlink()
    with pytest.raises(InputError, match="other sets"):
        run_plan([same], tmp_path)
    assert one.result(tmp_path) is None and run_plan([one], tmp_path)


def test_frameworks_and_sweeps_share_the_runs_of_table_1(groups: list[Group]) -> None:
    table = {digest(groups, method=name) for name in ("sdgmnet", "hynet", "hardnet+frn")}
    ablation = {one.digest() for one in ablation_runs(groups[:1], groups, TINY, 1)}
    assert len(ablation) == 10 and table <= ablation
    sweep = sweep_runs("alpha", (0.8, 0.9), groups[0], groups, TINY, 1)
    assert [one.digest() in table for one in sweep] == [False, True]


def test_finished_runs_are_not_trained_again(groups: list[Group], copied: Path, trainings: list[str]) -> None:
    first = run_plan(two(groups), copied)
    assert [one.config["encoder"] for one in first] == ["sdgmnet", "tfeat"] and trainings == []
    for one in two(groups):  # the result is all that is needed
        for path in one.find(copied).iterdir():
            if path.name != "result.json":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    more = [*two(groups), plan_method("tfeat", groups[1], groups, TINY, 0)]
    assert run_plan(more, copied)[:2] == first and trainings == [more[2].folder(copied).name]


def test_a_run_of_other_defaults_is_refused(groups: list[Group], copied: Path) -> None:
    one = two(groups)[0]
    path = one.find(copied) / "result.json"
    content = json.loads(path.read_text())
    content["config"] = {**content["config"], "momentum": 0.5, "an old setting": 1}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"momentum = 0\.5"):
        run_plan([one], copied)
    path.unlink()
    assert run_plan([one], copied)  # settings that the machine has decided are no change
    path.unlink()
    config = path.parent / "config.json"
    replace(TrainConfig.load(config), momentum=0.5).save(config)
    with pytest.raises(InputError, match=r"momentum = 0\.5"):
        run_plan([one], copied)


def test_an_interrupted_plan_continues_to_the_same_results(
    groups: list[Group], finished: Path, tmp_path: Path, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, done = fit.iterate_once, []

    def counted(state: Run) -> float:
        done.append(1)
        if len(done) == TINY.iterations + 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(state)

    with monkeypatch.context() as patch:
        patch.setattr(fit, "iterate_once", counted)
        with pytest.raises(Interrupted, match="tfeat on A, seed 0: stopped at step 2 of 3"):
            run_plan(two(groups), tmp_path)
    assert scored(run_plan(two(groups), tmp_path)) == scored(run_plan(two(groups), finished))
    names = [one.folder(tmp_path).name for one in two(groups)]
    assert trainings == [names[0], names[1], f"{names[1]} resumed"]
    for one in two(groups):
        logs = [(one.find(out) / "log.jsonl").read_text() for out in (finished, tmp_path)]
        assert logs[0] == logs[1]


@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_of_another_process_is_awaited_or_taken_over(
    groups: list[Group],
    finished: Path,
    tmp_path: Path,
    trainings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    finishes: bool,
) -> None:
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.05)
    first, second = two(groups)
    held = threading.Event()

    def other() -> None:
        """Holds the first run until the second is done; then it has finished it, or gives up."""
        with storage.try_lock(tmp_path / "runs" / f".{first.digest()}.lock") as mine:
            assert mine
            held.set()
            while second.result(tmp_path) is None:
                time.sleep(0.05)
            if finishes:
                shutil.copytree(first.find(finished), first.folder(tmp_path))

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    assert held.wait(60)
    results = run_plan([first, second], tmp_path)
    thread.join(60)
    assert scored(results) == scored(run_plan([first, second], finished))
    assert trainings == [one.folder(tmp_path).name for one in ([second] if finishes else [second, first])]
    shown = capsys.readouterr().err
    assert ("sdgmnet on A, seed 0 (trained by another process): FPR@95" in shown) == finishes
    assert "run 2 of 2 done, about 0 s left" in shown
    assert list((tmp_path / "runs").glob(".*.lock")) == []


def test_waiting_for_others_can_be_stopped(
    groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    one = two(groups)[0]
    monkeypatch.setattr(runner, "time_steps", lambda one: 1.0)
    # The runner's own sleep: that of the module `time` is also the lock's.
    monkeypatch.setattr(runner, "time", SimpleNamespace(**{**vars(time), "sleep": interrupted}))
    with storage.try_lock(tmp_path / "runs" / f".{one.digest()}.lock"), pytest.raises(Interrupted):
        run_plan([one], tmp_path)


def test_only_the_last_evaluation_is_repeated_if_it_was_cut_off(
    groups: list[Group], finished: Path, copied: Path, trainings: list[str]
) -> None:
    (two(groups)[1].find(copied) / "result.json").unlink()
    assert scored(run_plan(two(groups), copied)) == scored(run_plan(two(groups), finished)) and trainings == []


def test_finished_comes_before_begun_under_another_name(
    groups: list[Group], copied: Path, trainings: list[str]
) -> None:
    """As after a figure was interrupted and records of others were copied in."""
    one = two(groups)[0]
    begun = copied / "runs" / f"af+pa-A-s0-{one.digest()}"
    begun.mkdir()
    assert sorted([begun, one.find(copied)])[0] == begun
    shutil.copy(one.find(copied) / "config.json", begun)
    assert one.find(copied) == one.folder(copied) and run_plan([one], copied) and trainings == []


def test_a_start_that_was_cut_off_is_begun_anew(groups: list[Group], tmp_path: Path) -> None:
    one = two(groups)[1]
    checkpoint = one.folder(tmp_path) / "checkpoints/checkpoint-000000000.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half")
    assert run_plan([one], tmp_path)[0].diverged is None


def test_the_result_is_what_the_log_and_all_pairs_say(groups: list[Group], finished: Path) -> None:
    one = two(groups)[0]
    (result,) = run_plan([one], finished)
    lines = read_log(one.find(finished) / "log.jsonl", "evaluation")[1:]
    assert [line["step"] for line in result.checkpoints] == [line["step"] for line in lines] == [1, 2, 3]
    assert result.checkpoints[2]["fpr95"]["blobs1"] == lines[2]["fpr95"]["blobs1"]
    assert result.checkpoint_pairs == {"blobs1": 30, "blobs2": 30}
    assert result.pairs == {group.test[0].name: group.pairs() for group in groups[1:]}
    assert result.trained_on == ["blobs0"] and set(result.last) == {"blobs1", "blobs2"}
    assert not (one.find(finished) / "checkpoints").exists()
    assert concerns([replace(result, last=dict.fromkeys(result.last, 0.3))]) == []
    assert "95.0 %" in concerns([replace(result, last=dict.fromkeys(result.last, 0.95))])[0]
    assert concerns([replace(result, last={}, diverged="at step 2")]) == ["sdgmnet on A, seed 0: at step 2"]


def test_a_method_that_diverges_is_a_result_too(
    groups: list[Group], copied: Path, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fit.iterate_once

    def broken(state: Run) -> float:
        if state.config.encoder == "tfeat" and state.step == 1:
            raise Diverged("the loss is nan")
        return original(state)

    monkeypatch.setattr(fit, "iterate_once", broken)
    shutil.rmtree(two(groups)[1].find(copied))
    results = run_plan(two(groups), copied)
    assert "step 1 of 3: the loss is nan" in str(results[1].diverged) and str(copied) not in str(results[1].diverged)
    run_plan(two(groups), copied)
    assert len(trainings) == 1
    scores = scores_of(two(groups), results, 1)
    assert scores["tfeat"].ways["last"] == [] and len(scores["tfeat"].diverged) == 1
    expected = np.mean(list(last_ten(results[0], groups[1:]).values()))
    assert scores["sdgmnet"].ways["last ten"] == [pytest.approx(expected)]


def test_an_invalid_record_is_refused(groups: list[Group], copied: Path, tmp_path: Path) -> None:
    one = two(groups)[0]
    path = one.find(copied) / "result.json"
    content = json.loads(path.read_text())
    for damage in ({"last": {}}, {"checkpoints": []}, {"last": {**content["last"], "blobs1": 7.5}}):
        path.write_text(json.dumps({**content, **damage}))
        with pytest.raises(InputError, match="invalid scores"):
            one.result(copied)
    for text, said in (("{", "not valid JSON"), ('{"name": 1}', "this version")):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            read_result(path.parent, "0")
    Result("a", "1", {"encoder": "tfeat", "batch_size": 8}, [], [], {}, {}, {}, 1.0).save(tmp_path / "run")
    with pytest.raises(InputError, match="another run"):
        read_result(tmp_path / "run", "0")


def test_a_run_that_ends_elsewhere_while_steps_are_timed(
    groups: list[Group], finished: Path, tmp_path: Path, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(groups)

    def time_steps(one: Planned) -> float:
        assert one == first
        shutil.copytree(second.find(finished), second.folder(tmp_path))
        path = second.folder(tmp_path) / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds_per_iteration": 0.0}))
        return 1.0

    monkeypatch.setattr(runner, "time_steps", time_steps)
    assert scored(run_plan([first, second], tmp_path)) == scored(run_plan([first, second], finished))
    assert trainings == [first.folder(tmp_path).name]


def test_the_estimate_counts_evaluations_and_what_is_left(
    groups: list[Group], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = plan_method("tfeat", groups[0], groups, replace(TINY, checkpoint_pairs=20), 0)

    def evaluate(state: Run, tests: Sequence[PatchSet]) -> dict[str, float]:
        time.sleep(0.02 * sum(len(some_pairs(test, state.config.most_evaluation_pairs)) for test in tests))
        return {}

    monkeypatch.setattr(runner, "evaluate", evaluate)
    pairs, count = groups[1].pairs(), len(one.config.evaluation_steps())
    expected = 0.02 * (count * 20 + 2 * pairs) / TINY.iterations  # ten pairs of both sets each time, all at the end
    assert expected < runner.time_steps(one) < expected + 3
    folder = one.folder(tmp_path) / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "checkpoint-000000002.pt").write_bytes(b"")
    rates = {runner.rate_key(one): 7.0}
    (line,) = runner.plan_content([one], tmp_path, rates)
    assert (line["state"], line["seconds"]) == ("to do", 21.0)  # without a configuration it is begun anew
    one.config.save(folder.parent / "config.json")
    (folder / "checkpoint-old.pt").write_bytes(b"")
    (line,) = runner.plan_content([one], tmp_path, rates)
    assert (line["state"], line["seconds"], line["folder"]) == ("begun", 7.0, one.folder(tmp_path).name)
    (done,) = runner.plan_content(two(groups)[1:], finished, {})
    assert (done["state"], done["seconds"]) == ("done", 0.0)


def test_ratios_of_powers_are_those_after_the_warm_up(groups: list[Group], tmp_path: Path) -> None:
    """Section V-D: the mean over the epochs; during the warm-up all weights are 1, and so is the ratio."""
    budget = replace(TINY, iterations=40)
    runs = [plan_run(name, name, "native", groups[0], groups, budget, 0) for name in ("l2-pa", "l2+pa", "s-pa")]
    powers = [(8.0, 8.0)] * 4 + [(4.0, 2.0), (3.0, 4.0)]  # 10 % of 40 iterations are the warm-up
    lines: list[dict[str, Any]] = [
        {"kind": "epoch", "step": step, "power_pos": pos, "power_neg": neg}
        for step, (pos, neg) in enumerate(powers, start=1)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(line) for line in [*lines, {"kind": "epoch", "step": 7, "loss": 1.0}]))
    empty = Result("a", "1", {}, [], [], {}, {}, {}, 1.0)
    results = [replace(empty, powers=read_powers(log)), replace(empty, powers=read_powers(log)), empty]
    assert power_ratios(runs, results) == {"theta": [], "s": [], "l2": [(2.0 + 0.75) / 2], "af": []}
    late = power_ratios(runs, results, since=5 / 40)
    assert late["l2"] == [0.75]
    row = ratio_table({**late, "l2": [1.0, 2.0]}, late)[1][2]
    assert row == ["&l₂ −PA", "1.500 (1.000 to 2.000)", "0.750", "2", "1.02"]


# Comparable runs.


def cut(name: str, seed: int, patches: slice = slice(None)) -> PatchSet:
    """A set that was cut from photos; fewer patches are another cut of the same photos."""
    made = blob_patches(30, 3, seed)
    parts = {"patches": made.patches[patches], "point_id": made.point_id[patches]}
    return replace(made, name=name, origin={**CARD, "photos": name}, test_pairs=None, **parts)


def groups_with(*tests: PatchSet) -> list[Group]:
    return [make_group("A", ("a",), [cut("one", 1)]), make_group("B", ("b",), tests)]


def test_scenes_that_differ_are_found() -> None:
    assert differing_scenes([{"a": "1", "b": "2"}, {"b": "2", "c": "3"}, {"c": "4", "a": "1"}]) == ["c"]
    assert differing_scenes([]) == differing_scenes([{"a": "1"}]) == []


def test_runs_are_compared_on_the_scenes_they_have_in_common(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run was tested on another cut of the scene three."""
    made = groups_with(cut("two", 2), cut("three", 3)), groups_with(cut("two", 2), cut("three", 3, slice(75)))
    runs = [plan_method("tfeat", one[0], one, TINY, seed) for seed, one in enumerate(made)]
    results = run_plan(runs, tmp_path)
    both = last(results[0], runs[0].tests)["B"]
    assert both == pytest.approx((results[0].last["two"] + results[0].last["three"]) / 2)
    assert scenes_left_out(results) == ["three"] and "three" in data_notes(runs, results)
    found = compared(groups_tested(runs), results)
    for one, before, after in zip(runs, results, found, strict=True):
        assert last(after, one.tests) == {"B": before.last["two"]} != last(before, one.tests)
        assert [set(line["fpr95"]) for line in after.checkpoints] == [{"two"}] * 3
        assert set(after.pairs) == set(after.checkpoint_pairs) == {"two"}
    assert runs[0].tests[0].pairs(["three"]) == results[0].pairs["two"]
    assert compared(groups_tested(runs[:1]), results[:1]) == results[:1]
    assert scenes_left_out([results[0], replace(results[1], diverged="at step 2")]) == []  # it has no score to compare
    capsys.readouterr()
    require_comparable(runs, tmp_path)
    assert "Left out of the tests: three" in capsys.readouterr().err
    again = groups_with(cut("two", 2, slice(75)), cut("three", 3, slice(75)))
    missing = plan_method("tfeat", again[0], again, TINY, 2)
    with pytest.raises(InputError, match=r"B \(two, three"):
        require_comparable([*runs, missing], tmp_path)
    with pytest.raises(InputError, match=r"B \(two, three"):
        compared(groups_tested(runs), [*results, *run_plan([missing], tmp_path)])
