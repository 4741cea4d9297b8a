"""`python -m reproduce fig6a | fig6c | reproducibility | table2-4`: figures and tables of SDGMNet's own runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro
from rich.console import Console

from reproduce import ablation, checkpoints, stages
from reproduce.captions import caption_of_run
from reproduce.comparable import compared, require_comparable, scenes_left_out
from reproduce.groups import Group, find_group
from reproduce.output import deliver_paper, require_folder, require_run
from reproduce.plan import Planned, made_elsewhere, plan_method, unique_runs
from reproduce.results import Result, concern
from reproduce.runner import run_plan
from reproduce.table1 import PlanArguments, describe_with, finished_runs, only_plan
from sdgmnet.errors import InputError
from sdgmnet.report import Section, print_aside
from sdgmnet.training.config import EPOCHS

TOP_TEN = "the mean of a run's ten best checkpoints, chosen on the test pairs (the paper's way)"


@dataclass(frozen=True)
class RunsArguments(PlanArguments):
    """What all commands of SDGMNet's own runs have in common."""

    train: tuple[str, ...] = ()
    """Groups to train on, each tested on all others; left out: all."""

    def opened_with_trained(self, everywhere: bool = True) -> tuple[list[Group], list[Group]]:
        """All groups, and those to train on: as --train names them, otherwise all or only the first."""
        groups = self.opened()
        if self.train:
            return groups, [find_group(groups, name) for name in dict.fromkeys(self.train)]
        return groups, groups if everywhere else groups[:1]

    def opened_with_one_trained(self) -> tuple[list[Group], Group]:
        """All groups, and the one to train on: that of --train, otherwise the first (of PhotoTour Liberty, as in the paper)."""
        if len(set(self.train)) > 1:
            raise InputError(f"--train {' '.join(self.train)}: this figure is of runs on one group; name one.")
        groups = self.opened()
        return groups, find_group(groups, self.train[0] if self.train else None)

    def caption(
        self,
        what: str,
        groups: Sequence[Group],
        trained: Sequence[Group],
        seeds: int = 1,
        left_out: Sequence[str] = (),
    ) -> str:
        names = ", ".join(group.name for group in trained)
        return (
            f"{what} FPR@95 in %, lower is better. {self.data_sentence(groups, left_out)} Trained on {names}, tested on the "
            f"others. {self.budget().sentence()}; {seeds} seed{'s' if seeds > 1 else ''}."
        )


def require_seeds(seeds: int) -> None:
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}.")


class Done(NamedTuple):
    """Runs that have a result, their results, and sentences about them for the caption."""

    runs: list[Planned]
    results: list[Result]
    remarks: str
    left_out: list[str]  # test scenes that were not the same for all


def carried_out(arguments: RunsArguments, planned: Sequence[Planned]) -> Done | None:
    """None where only the plan was asked for."""
    console, state = Console(stderr=True), ""
    if not arguments.finished:
        require_comparable(unique_runs(planned), arguments.out, console)
    if arguments.plan:
        only_plan(planned, arguments, console)
        return None
    if arguments.finished:
        runs, found = finished_runs(planned, arguments.out)
        missing = len(unique_runs(planned)) - len(unique_runs(runs))
        state = f" Not whole yet: {missing} of the {len(unique_runs(planned))} runs are missing." if missing else ""
    else:
        runs, found = list(planned), run_plan(planned, arguments.out, describe_with, console)
    results, sentence = compared(runs, found)
    return Done(runs, results, made_elsewhere(runs, found) + sentence + state, scenes_left_out(found))


def concerns(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(sentence for one in results if (sentence := concern(one))))


@dataclass(frozen=True)
class Fig6aArguments(RunsArguments):
    """Fig. 6 (a): FPR@95 of SDGMNet along training, a curve a training group, the best checkpoint marked.

    python -m reproduce fig6a --groups A=sets/castle B=sets/rock C=sets/temple -o paper
    """


def fig6a(words: list[str]) -> None:
    arguments = tyro.cli(Fig6aArguments, prog="python -m reproduce fig6a", args=words)
    groups, trained = arguments.opened_with_trained()
    planned = [plan_method("sdgmnet", group, groups, arguments.budget(), 0) for group in trained]
    done = carried_out(arguments, planned)
    if done is None:
        return
    runs, results, remarks, left_out = done
    curves = checkpoints.curves_of(runs, results)
    what = "SDGMNet's checkpoints: mean over the test groups; the image has the second half of long runs."
    caption = arguments.caption(what, groups, trained, left_out=left_out)
    caption += remarks
    sections = [
        Section("Fig. 6 (a)", caption, *checkpoints.fig6a_table(curves)),
        Section("As printed in the paper (Table 1)", checkpoints.BEST_NOTE, *checkpoints.printed_best()),
    ]
    content = {
        "caption": caption,
        "left_out": left_out,
        "curves": curves,
        "paper_best_percent": checkpoints.paper_best(),
    }
    seen = max((sum(result.checkpoint_pairs.values()) for result in results), default=0)
    pairs = f"on {seen} test pairs a checkpoint"
    draw = partial(checkpoints.draw_fig6a, curves, pairs=pairs)
    deliver_paper(arguments.out, "fig6a", content, sections, draw, arguments.json, concerns(results))


@dataclass(frozen=True)
class ReproducibilityArguments(RunsArguments):
    """Section V-A: SDGMNet trained with several seeds; mean and standard deviation of the top ten checkpoints.

    python -m reproduce reproducibility --groups A=sets/castle B=sets/rock C=sets/temple --seeds 3 -o paper
    """

    seeds: int = 3
    """Trainings on each group; the paper has 10."""


def reproducibility(words: list[str]) -> None:
    arguments = tyro.cli(ReproducibilityArguments, prog="python -m reproduce reproducibility", args=words)
    require_seeds(arguments.seeds)
    groups, trained = arguments.opened_with_trained()
    budget = arguments.budget()
    planned = [
        plan_method("sdgmnet", group, groups, budget, seed) for seed in range(arguments.seeds) for group in trained
    ]
    done = carried_out(arguments, planned)
    if done is None:
        return
    runs, results, remarks, left_out = done
    spread = checkpoints.spread_of(runs, results, len(trained))
    caption = arguments.caption(f"SDGMNet, {TOP_TEN}.", groups, trained, arguments.seeds, left_out)
    caption += remarks
    sections = [
        Section("Reproducibility", caption, *checkpoints.spread_table(spread)),
        Section("As printed in the paper (Section V-A)", "PhotoTour, full trainings.", *checkpoints.printed_spread()),
    ]
    content = {"caption": caption, "left_out": left_out, "fpr95": spread, "paper_percent": checkpoints.REPRODUCIBILITY}
    draw = partial(checkpoints.draw_spread, spread)
    deliver_paper(arguments.out, "reproducibility", content, sections, draw, arguments.json, concerns(results))


@dataclass(frozen=True)
class Fig6cArguments(RunsArguments):
    """Fig. 6 (c): four self weights with and without power adjustment, and the ratios of powers of Section V-D.

    HyNet and HardNet+FRN are the dashed lines. Runs that table1 trained into the same folder are not trained again.

        python -m reproduce fig6c --groups A=sets/castle B=sets/rock C=sets/temple --seeds 2 -o paper
    """

    train: tuple[str, ...] = ()
    """Groups to train on, each tested on all others; left out: the first one at small scale, all at full scale."""
    seeds: int = 1
    """Trainings of each framework on each of these groups."""


def fig6c(words: list[str]) -> None:
    arguments = tyro.cli(Fig6cArguments, prog="python -m reproduce fig6c", args=words)
    require_seeds(arguments.seeds)
    groups, trained = arguments.opened_with_trained(everywhere=arguments.scale == "full")
    planned = ablation.ablation_runs(trained, groups, arguments.budget(), arguments.seeds)
    done = carried_out(arguments, planned)
    if done is None:
        return
    runs, results, remarks, left_out = done
    scores = ablation.scores_of(runs, results, len(trained))
    ratios, late = (ablation.power_ratios(runs, results, since) for since in (None, ablation.LATE))
    what = f"Mean over all train→test cells. {ablation.DASHED_NOTE}"
    caption = arguments.caption(what, groups, trained, arguments.seeds, left_out) + remarks
    sections = [
        Section("Fig. 6 (c): ablation", caption, *ablation.score_table(scores)),
        Section(
            "Ratio of powers P⁺/P⁻ without power adjustment (Section V-D)",
            "Means over the epochs, and over the runs (their range). &θ is 1 by construction. "
            "The paper prints its four numbers in no stated order; here they stand by the definitions.",
            *ablation.ratio_table(ratios, late),
        ),
    ]
    content = {"caption": caption, "left_out": left_out, **ablation.content(scores, ratios, late)}
    draw = partial(ablation.draw_fig6c, scores)
    deliver_paper(arguments.out, "fig6c", content, sections, draw, arguments.json, concerns(results))


@dataclass(frozen=True)
class StagesArguments:
    """Tables 2-4: the running statistics at five stages of training, beside those of the authors' logs.

    python -m reproduce table2-4 runs/liberty runs/notredame -o paper
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of finished runs that were trained with SDGMNet's loss."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder for table2-4.md, .json, .png and .pdf."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""


def statistics(words: list[str]) -> None:
    arguments = tyro.cli(StagesArguments, prog="python -m reproduce table2-4", args=words)
    if not arguments.runs:
        raise InputError("name at least one folder of a run that was trained with SDGMNet's loss.")
    require_folder(arguments.out)
    print_aside(f"Tables 2-4: from the logs of {', '.join(map(str, arguments.runs))}; seconds.")
    ours, sections = {}, []
    for folder in arguments.runs:
        require_run(folder)
        found, config = stages.stages_of(folder)
        if found.label in ours:
            raise InputError(f"{folder}: two runs are called {found.label}; name one of the folders otherwise.")
        ours[found.label] = found
        caption = (
            f"Running statistics of Eq. (14) at the ends of five of {min(EPOCHS, config.iterations)} epochs, decay "
            f"{config.loss_setting('decay'):g}; angles in radians. {caption_of_run(folder)}"
        )
        sections.append(Section(f"Tables 2-4: {found.label}", caption, *stages.stage_table(found)))
    sections += [Section(one.label, stages.AUTHORS_NOTE, *stages.stage_table(one)) for one in stages.AUTHORS]
    content = {
        "captions": [one.text for one in sections],
        "stages": stages.STAGES,
        "here": {label: found._asdict() for label, found in ours.items()},
        "authors": {found.label: found.values for found in stages.AUTHORS},
    }
    draw = partial(stages.draw_stages, ours)
    deliver_paper(arguments.out, "table2-4", content, sections, draw, arguments.json)
