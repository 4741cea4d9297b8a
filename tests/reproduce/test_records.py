"""The committed records open, and give the tables that the documentation shows."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reproduce.ablation import LATE, ablation_runs, power_ratios, ratio_table, score_table, scores_of
from reproduce.arguments import ALPHAS, MARGINS
from reproduce.checkpoints import spread_of, spread_table
from reproduce.groups import Group
from reproduce.modulation import read_angles
from reproduce.output import caption_of_run
from reproduce.published import METHODS, Presets
from reproduce.results import Result, compared, read_result
from reproduce.runs import Budget, Planned, flat_settings, groups_tested, plan_method
from reproduce.stages import read_stages, stage_table
from reproduce.sweeps import curve_of, sweep_runs, sweep_table
from reproduce.table1 import learned_lines, summary_table
from sdgmnet.data.patchset import PatchSet
from sdgmnet.training.config import TrainConfig

RECORDS = Path(__file__).parents[2] / "reproduce/records"
EXPECTED = json.loads(Path(__file__).with_name("record_tables.json").read_text(encoding="utf-8"))
BUDGET = Budget(400, 256, 20, 2000)
LEARNED = [name for name, method in METHODS.items() if method.recipe is not None]
SHARED = ("sdgmnet", "af+pa", "margin=0.6", "alpha=0.9")  # one run under four names
FOLDER = re.compile(r"(.+)-([ABC])-s(\d)-([0-9a-f]{12})")


@dataclass(frozen=True)
class Records:
    groups: list[Group]
    results: dict[tuple[str, str, int], Result]  # by method, group and seed

    def of(self, runs: list[Planned]) -> tuple[list[Planned], list[Result]]:
        """The planned runs that have a record, with the results on common scenes."""
        known = []
        for one in runs:
            names = SHARED if one.method in SHARED else (one.method,)
            for name in names:
                result = self.results.get((name, one.train.name, one.config.seed))
                if result is not None:
                    one.require_same(result.config, RECORDS)
                    known.append((one, result))
                    break
        runs = [one for one, _ in known]
        return runs, compared(groups_tested(runs), [result for _, result in known])


def read_records(folder: str) -> Records:
    results = {}
    for path in sorted((RECORDS / folder).glob("*/result.json")):
        match = FOLDER.fullmatch(path.parent.name)
        assert match is not None
        result = read_result(path.parent, match[4])
        assert result is not None
        results[match[1], match[2], int(match[3])] = result
    sets = {group: result.trained_on for (_, group, _), result in results.items()}
    pairs = np.zeros((5000, 3), np.int64)
    made = {name: PatchSet(name, np.zeros((2, 64, 64), np.uint8), np.zeros(2, np.int64), test_pairs=pairs)
            for names in sets.values() for name in names}  # fmt: skip
    groups = []
    for name in "ABC":
        scenes = tuple(made[scene] for scene in sets[name])
        groups.append(Group(name, (name,), scenes, scenes))
    return Records(groups, results)


@pytest.fixture(scope="module")
def records() -> Records:
    return read_records("runs")


def test_records_are_of_configurations_of_this_version() -> None:
    known = sorted(RECORDS.glob("**/result.json"))
    assert known
    for path in known:
        recorded = json.loads(path.read_text())["config"]
        settings = flat_settings(TrainConfig.from_dict(recorded, str(path)))
        assert {name: json.loads(json.dumps(settings[name])) for name in recorded} == recorded


def test_powers_open() -> None:
    powers = json.loads((RECORDS / "powers.json").read_text())
    assert {"theta", "s", "l2", "af"} <= set(powers)
    assert all(len(line) == 3 for lines in powers.values() for line in lines)


@pytest.mark.parametrize(("folder", "preset"), [("runs", "table"), ("runs_sdgm", "sdgm")])
def test_table_1(folder: str, preset: Presets) -> None:
    records = read_records(folder)
    planned = [
        plan_method(name, group, records.groups, BUDGET, seed, preset)
        for seed in (0, 1)
        for group in records.groups
        for name in LEARNED
    ]
    runs, results = records.of(planned)
    body = summary_table(learned_lines(LEARNED, runs, results, records.groups))[1]
    assert {row[0]: row[1:5] for row in body} == EXPECTED[folder]


def test_reproducibility(records: Records) -> None:
    seeds = [plan_method("sdgmnet", one, records.groups, BUDGET, seed) for seed in (0, 1) for one in records.groups]
    assert spread_table(spread_of(*records.of(seeds), 3))[1] == EXPECTED["reproducibility"]


def test_ablation(records: Records) -> None:
    runs, results = records.of(ablation_runs(records.groups[:1], records.groups, BUDGET, 2))
    assert [row[:4] for row in score_table(scores_of(runs, results, 1))[1]] == EXPECTED["ablation"]
    ratios, late = (power_ratios(runs, results, since) for since in (None, LATE))
    assert ratio_table(ratios, late)[1] == EXPECTED["power_ratios"]


def test_sweeps(records: Records) -> None:
    groups = records.groups
    sweeps = {"margin": MARGINS, "alpha": ALPHAS}
    planned = [run for name, values in sweeps.items() for run in sweep_runs(name, values, groups[0], groups, BUDGET, 2)]
    runs, results = records.of(planned)
    assert sweep_table({name: curve_of(name, runs, results) for name in sweeps})[1] == EXPECTED["sweeps"]


def test_the_run_from_scratch() -> None:
    stages, config = read_stages(RECORDS / "scratch")
    assert stage_table(stages)[1] == EXPECTED["stages"]
    assert config.batch_size == 1024 and len(read_angles(RECORDS / "scratch").theta_pos) == 8192
    assert caption_of_run(RECORDS / "scratch").startswith(
        "Run scratch: sdgmnet by sdgm on lund2, lund6, lund8, monstree"
    )
