"""`python -m reproduce answer`: the comparison on one page, every number from the records of `everything`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from reproduce.arguments import AnswerArguments
from reproduce.benchmarks import reconstruction_table
from reproduce.modulation import Modulation, draw_modulations, examine
from reproduce.modulation import table as modulation_table
from reproduce.output import Table
from reproduce.published import HPATCHES_DIFFERENCES, METHODS, TABLE1
from reproduce.results import FILE, Result, number, read_result
from sdgmnet.errors import InputError
from sdgmnet.plots.style import COLOURS, PAGE, new_figure, printed, save_print
from sdgmnet.report import Section, print_aside, sections_markdown
from sdgmnet.storage import read_json, write_text
from sdgmnet.training.angles import Angles
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.microscope import prepare
from sdgmnet.training.run import build_loss

OURS = "sdgmnet"
MODULATION_ROWS, MODULATION_GRID = 24, 16


class Interval(NamedTuple):
    mean: float
    low: float  # 95 %
    high: float
    cells: int
    seeds: int

    def text(self, pattern: str = "+.2f") -> str:
        return f"{self.mean:{pattern}} [{self.low:{pattern}}, {self.high:{pattern}}]"


def interval(differences: np.ndarray) -> Interval:
    """Of the mean of paired differences (cells, seeds), both random: Student's t with the variances of the two marginal means
    and Satterthwaite's degrees of freedom. Each marginal variance contains the residual, so the interval is conservative."""
    parts = [differences.mean(axis=1 - axis) for axis in (0, 1) if differences.shape[axis] > 1]
    variances = np.array([one.var(ddof=1) / len(one) for one in parts])
    half = 0.0
    if variances.sum() > 0:
        freedom = variances.sum() ** 2 / sum(v**2 / (len(one) - 1) for v, one in zip(variances, parts, strict=True))
        half = float(student.ppf(0.975, freedom) * np.sqrt(variances.sum()))
    mean = float(differences.mean())
    return Interval(mean, mean - half, mean + half, *differences.shape)


@dataclass(frozen=True)
class Row:
    """A method with one preset: its finished runs by seed."""

    method: str
    native: bool
    runs: Mapping[int, Result]

    @property
    def label(self) -> str:
        return METHODS[self.method].label + (", native" if self.native else "")

    def line(self, seed: int) -> str:
        """The label in the records of the benchmarks."""
        return self.label if self.native else f"{self.label}, seed {seed}"


@dataclass(frozen=True)
class Records:
    folder: Path

    def read(self, name: str) -> Any:
        """None if this part was not measured."""
        path = self.folder / f"{name}.json"
        return read_json(path) if path.exists() else None

    def lines(self, name: str) -> dict[str, Any]:
        """What a benchmark measured, by label; empty if it was not run."""
        return dict((self.read(name) or {"lines": {}})["lines"])

    @cached_property
    def plan(self) -> dict[str, Any]:
        if not (self.folder / "plan.json").exists():
            raise InputError(
                f"{self.folder} has no plan.json: give the folder records of python -m reproduce everything."
            )
        return dict(self.read("plan"))

    @cached_property
    def results(self) -> dict[str, Result]:
        """By the folder of the run."""
        found = {}
        for path in sorted(self.folder.glob(f"runs/*/{FILE}")):
            result = read_result(path.parent, path.parent.name.rpartition("-")[2])
            assert result is not None
            found[path.parent.name] = result
        return found

    @cached_property
    def rows(self) -> list[Row]:
        """In the order of Table 1, rows of the preset sdgm first."""
        runs: dict[tuple[bool, str], dict[int, Result]] = {}
        for result in self.results.values():
            name, _, where = result.name.partition(" on ")
            if where.startswith("sets") and result.diverged is None:
                key = name.endswith("-native"), name.removesuffix("-native")
                runs.setdefault(key, {})[result.config["seed"]] = result
        order = [(native, name) for native in (False, True) for name in METHODS]
        return [Row(name, native, runs[native, name]) for native, name in order if (native, name) in runs]

    def row(self, method: str) -> Row | None:
        return next((row for row in self.rows if row.method == method and not row.native), None)

    def cells(self, row: Row, measure: str) -> dict[int, dict[str, float]]:
        """By seed and test scene or sequence: FPR@95 (%), mAP of matching strips (%), or correct matches of 200."""
        if measure == "fpr95":
            return {seed: {k: 100 * v for k, v in run.last.items()} for seed, run in row.runs.items()}
        name, key, scale = {"hpatches": ("hpatches", "matching", 100.0), "correct": ("matching", "correct", 1.0)}[
            measure
        ]
        lines = self.lines(name)
        return {
            seed: {k: scale * v for k, v in lines[row.line(seed)][key].items()}
            for seed in row.runs
            if row.line(seed) in lines
        }

    def difference(self, row: Row, measure: str) -> Interval | None:
        """Of the row minus SDGMNet, over common seeds and cells."""
        ours = self.row(OURS)
        if ours is None:
            return None
        first, second = self.cells(row, measure), self.cells(ours, measure)
        seeds = sorted(set(first) & set(second))
        if not seeds:
            return None
        names = sorted(first[seeds[0]])
        return interval(np.array([[first[seed][name] - second[seed][name] for seed in seeds] for name in names]))


# The tables.


def table1(records: Records) -> Table:
    scenes = records.plan["holdout"]
    body = []
    if sift := records.read("sift"):
        cells = [sift[name] for name in scenes]
        body.append(["SIFT", *(number([one], False) for one in cells), number([float(np.mean(cells))], False), "-",
                     f"{np.mean(TABLE1['sift'].cells):.2f}"])  # fmt: skip
    for row in records.rows:
        each = [number([run.last[name] for run in row.runs.values()], False) for name in scenes]
        mean = number([float(np.mean(list(run.last.values()))) for run in row.runs.values()], False)
        paper = f"{np.mean(TABLE1[row.method].cells):.2f}"
        body.append([row.label, *each, mean, str(len(row.runs)), paper])
    return ["FPR@95 (%)", *scenes, "mean", "seeds", "the paper: PhotoTour, mean of cells"], body


def difference_table(records: Records) -> Table:
    body = []
    for row in records.rows:
        if row.method == OURS and not row.native:
            continue
        found = [records.difference(row, measure) for measure in ("fpr95", "hpatches", "correct")]
        cells = ["-" if one is None else one.text() for one in found]
        seeds = next((str(one.seeds) for one in found if one is not None), "-")
        paper = f"{np.mean(TABLE1[row.method].cells) - np.mean(TABLE1[OURS].cells):+.2f}"
        body.append([f"{row.label} − SDGMNet", *cells, seeds, paper])
    header = ["difference", "FPR@95 (points)", "strips: matching mAP (points)", "correct matches of 200", "seeds"]
    return [*header, "the paper: FPR@95 (points)"], body


def benchmark_lines(records: Records, name: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Label, and the measured lines of its seeds."""
    lines = records.lines(name)
    fixed = [(label, [line]) for label, line in lines.items() if label in ("SIFT", "RootSIFT")]
    learned = [(row.label, [lines[row.line(s)] for s in row.runs if row.line(s) in lines]) for row in records.rows]
    return fixed + [(label, found) for label, found in learned if found]


def fig4_table(records: Records) -> Table:
    tasks = ("verification", "matching", "retrieval")
    body = [
        [
            label,
            *(number([line[kind][task] for line in lines], False) for kind in ("map", "delta_map") for task in tasks),
        ]
        for label, lines in benchmark_lines(records, "hpatches")
    ]
    return ["mAP (%)", *tasks, *(f"ΔmAP {task}" for task in tasks)], body


def stated_table(records: Records) -> Table:
    """The differences that the paper's text states for Fig. 4."""
    lines = records.lines("hpatches")
    body = []
    for task, better, worse, stated in HPATCHES_DIFFERENCES:
        first, second = records.row(better), records.row(worse)
        values = []
        if first is not None and second is not None:
            labels = [(first.line(seed), second.line(seed)) for seed in first.runs if seed in second.runs]
            values = [lines[a]["map"][task] - lines[b]["map"][task] for a, b in labels if a in lines and b in lines]
        ours = ", ".join(f"{100 * value:+.2f}" for value in values) or "-"
        body.append([f"{task}: {METHODS[better].label} − {METHODS[worse].label}", ours, f"{stated:+.2f}"])
    return ["difference of mAP (points)", "here, per seed", "the paper, split a"], body


def fig5_table(records: Records) -> Table:
    body = []
    for label, lines in benchmark_lines(records, "matching"):
        means = np.mean([[*line["sampled"], line["score"]] for line in lines], axis=0)
        body.append([label, *(f"{one:.1f}" for one in means[:-1]), f"{means[-1]:.3f}"])
    return ["correct of 200", "1 px", "3 px", "5 px", "matching score"], body


def table5(records: Records) -> Table:
    lines = records.lines("reconstruction").items()
    rows = [{**row, "label": label.removesuffix(", seed 0")} for label, line in lines for row in line["rows"]]
    return reconstruction_table(rows) if rows else (["set"], [])


def search_table(records: Records) -> Table:
    found: dict[str, dict[float, str]] = {}
    for result in records.results.values():
        name, _, where = result.name.partition(" on ")
        if where.startswith("search"):
            score = "diverged" if result.diverged is not None else f"{100 * np.mean(list(result.last.values())):.2f}"
            found.setdefault(name.partition("-rate=")[0], {})[result.config["learning_rate"]] = score
    rates = sorted({rate for scores in found.values() for rate in scores})
    chosen = {
        row.method: f"{next(iter(row.runs.values())).config['learning_rate']:g}"
        for row in records.rows
        if not row.native
    }
    body = [
        [METHODS[name].label, *(found[name].get(rate, "-") for rate in rates), chosen.get(name, "not trained")]
        for name in METHODS
        if name in found
    ]
    return ["loss", *(f"rate {rate:g}" for rate in rates), "chosen"], body


def cost_table(records: Records) -> Table:
    body = []
    for row in records.rows:
        runs = list(row.runs.values())
        pairs = sum(run.config["iterations"] * run.config["batch_size"] for run in runs)
        known = [run.seconds_per_iteration * run.config["iterations"] for run in runs if run.seconds_per_iteration]
        hours = f"{sum(known) / 3600:.2f}" if len(known) == len(runs) else "-"
        body.append([row.label, str(len(runs)), f"{pairs}", hours])
    return ["row", "runs", "pairs", "hours, evaluations included"], body


def verdicts(records: Records) -> list[str]:
    """One sentence per claim of the paper that was measured; nothing beyond its interval."""
    wanted = {
        "fpr95": (-1, "a lower FPR@95 than", "points"),
        "hpatches": (1, "a higher mAP in matching strips than", "points"),
        "correct": (1, "more correct matches than", "of 200"),
    }
    sentences = []
    for row in records.rows:
        if row.native or row.method == OURS:
            continue
        for measure, (sign, claim, unit) in wanted.items():
            found = records.difference(row, measure)
            if found is None:
                continue
            advantage = Interval(-found.mean, -found.high, -found.low, found.cells, found.seeds)
            ends = sorted((sign * advantage.low, sign * advantage.high))
            verdict = "**not decided**"
            if found.seeds > 1 and (ends[0] > 0 or ends[1] < 0):
                verdict = "**shows**" if ends[0] > 0 else "**the opposite shows**"
            kind = "scenes" if measure == "fpr95" else "sequences"
            cells = f"{found.cells} {kind} × {found.seeds} seed{'s' if found.seeds > 1 else ''}"
            sentences.append(f"SDGM has {claim} {row.label}: {verdict}, {advantage.text()} {unit} ({cells}).")
    return sentences


def modulations(records: Records) -> list[tuple[Modulation, Angles]]:
    """Of the first seed of each row of the preset sdgm, at the angles of its own end of training."""
    known, found = records.read("statistics") or {}, []
    for folder, result in records.results.items():
        if folder in known and result.config["seed"] == 0 and "-native" not in result.name:
            angles = Angles(**{key: np.array(value) for key, value in known[folder].items()})
            config = TrainConfig.from_dict(result.config, folder)
            label = METHODS[result.name.partition(" on ")[0]].label
            loss = prepare(build_loss(config), angles, MODULATION_ROWS)
            found.append((examine(loss, label, angles, MODULATION_GRID, MODULATION_ROWS), angles))
    order = [method.label for method in METHODS.values()]
    return sorted(found, key=lambda one: order.index(one[0].label))


# The page.


def page(records: Records, command: str, losses: Sequence[Modulation]) -> str:
    plan = records.plan
    labels = {row.line(seed) for row in records.rows for seed in row.runs}
    lacking = [label for label in plan["planned"] if label not in labels]
    sets = plan["sets"]["train"]
    native = "" if any(row.native for row in records.rows) else " No row of the preset native is finished."
    intro = (
        f"Rows trained here on equal terms: encoder `{plan['encoder']}`, {plan['pairs']} pairs per run, "
        f"N = {plan['batch_size']}, the same sets, window and augmentation; only the loss and its learning rate differ. "
        f"Trained on {', '.join(sets)}; tested on {', '.join(plan['holdout'])} (5000 pairs each), which were not trained on. "
        f"Learning rates were chosen on {plan['validation']} in runs of {plan['search_pairs']} pairs that did not train on it. "
        f"{len(labels)} of the {len(plan['planned'])} planned runs are finished.{native}"
        + (f" Missing: {'; '.join(lacking)}." if lacking else "")
    )
    note = (
        "Brackets are 95 % intervals of the mean difference of runs with the same seed, over test cells (scenes or sequences) "
        "and seeds, both as random samples (Student's t, Satterthwaite's degrees of freedom). They say nothing about other "
        "encoders, more pairs or other photos. With one seed the spread between trainings is unknown, so nothing is decided."
    )
    claims = "".join(f"- {one}\n" for one in verdicts(records)) or "No two rows are finished.\n"
    sections = [
        Section(
            "Differences", "Positive FPR@95 and negative mAP or matches: SDGM is better.", *difference_table(records)
        ),
        Section(
            "Table 1", "Last checkpoint, all test pairs; ± is the standard deviation over seeds.", *table1(records)
        ),
    ]
    if records.read("hpatches"):
        text = f"{records.read('hpatches')['note']}. Not the official strips: do not compare with published values."
        sections += [Section("Fig. 4: HPatches tasks", text, *fig4_table(records)),
                     Section("Differences stated in the paper for Fig. 4", "", *stated_table(records))]  # fmt: skip
    if records.read("matching"):
        text = "Correct nearest neighbours of 200 random keypoints, mean over image pairs and draws; the paper prints none."
        sections.append(Section("Fig. 5: image matching", text, *fig5_table(records)))
    if records.read("reconstruction"):
        text = (
            "First seeds; keypoints of COLMAP's SIFT, mutual nearest neighbours. One model each, so without intervals."
        )
        sections.append(Section("Table 5: reconstruction", text, *table5(records)))
    text = f"FPR@95 (%) on {plan['validation']} after {plan['search_pairs']} pairs; the paper's rate is 1."
    sections.append(Section("Search for learning rates", text, *search_table(records)))
    text = f"Autograd on one triplet in a batch of {MODULATION_ROWS}, at the angles at the end of each network's own training."
    sections.append(Section("Modulation of each trained network", text, *modulation_table(losses)))
    sections.append(Section("Cost", f"{plan['threads'] or 'All'} thread per training.", *cost_table(records)))
    figures = "![FPR@95 along training, and differences to SDGM](comparison.png)\n\n![Modulation](comparison_modulation.png)\n"
    return (
        f"# All rows on equal terms\n\n{intro}\n\nMade from the records by `{command}`.\n\n## Which claims show\n\n{claims}\n"
        f"{note}\n\n{sections_markdown(sections)}\n{figures}"
    )


def answer(arguments: AnswerArguments) -> None:
    records = Records(arguments.records)
    found = modulations(records)
    command = f"python -m reproduce answer {arguments.records} -o {arguments.out}"
    text = page(records, command, [one for one, _ in found])
    print(text)
    write_text(arguments.out / "comparison.md", text)
    files = draw(records, arguments.out / "comparison")
    if found:
        source = "the angles of the first network; curves of the others at their own quantiles"
        losses = [one for one, _ in found]
        files += draw_modulations(losses, found[0][1], source, arguments.out / "comparison_modulation")
    print_aside(f"Written to {arguments.out}: comparison.md, {', '.join(path.name for path in files)}.")


def draw(records: Records, stem: Path) -> list[Path]:
    """Left: Fig. 6 (a) for every loss, mean over scenes and seeds. Right: differences to SDGM with their intervals."""
    rows = [row for row in records.rows if not row.native]
    with printed():
        figure, axes = new_figure(1, 2, PAGE, 2.6)
        for row in rows:
            runs = list(row.runs.values())
            steps = [line["step"] * runs[0].config["batch_size"] / 1000 for line in runs[0].checkpoints]
            curve = np.mean(
                [[100 * np.mean(list(c["fpr95"].values())) for c in run.checkpoints] for run in runs], axis=0
            )
            axes[0, 0].plot(steps, curve, marker="o", markersize=3, color=COLOURS[row.method], label=row.label)
        axes[0, 0].set(xlabel="pairs (thousands)", ylabel="mean FPR@95 (%)", yscale="log", title="along training")
        axes[0, 0].legend()
        others = [row for row in rows if row.method != OURS]
        for place, row in enumerate(others):
            if one := records.difference(row, "fpr95"):
                error = [[one.mean - one.low], [one.high - one.mean]]
                axes[0, 1].errorbar(one.mean, place, xerr=error, fmt="s", color=COLOURS[row.method], capsize=3)
        axes[0, 1].axvline(0, color="#7f7f7f", linewidth=0.8)
        axes[0, 1].set_yticks(range(len(others)), [row.label for row in others])
        axes[0, 1].set(xlabel="FPR@95 minus SDGM's (points)", title="95 % intervals", ylim=(len(others) - 0.5, -0.5))
        for axis in axes[0]:
            axis.grid(linestyle=":")
        return save_print(figure, stem)
