"""What all commands that train have in common: their options, and carrying out their plan."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from reproduce.groups import Group, find_group, open_groups
from reproduce.output import OutputArguments
from reproduce.results import Result, compared, scenes_left_out
from reproduce.runner import (
    NOTHING_MORE,
    Then,
    announce,
    plan_content,
    require_batches,
    run_plan,
    seconds_of,
    seconds_per_iteration,
)
from reproduce.runs import (
    FULL_BUDGET,
    SMALL_BUDGET,
    Budget,
    Planned,
    data_notes,
    finished_runs,
    groups_tested,
    require_comparable,
    unique_runs,
)
from sdgmnet.errors import InputError
from sdgmnet.report import Flag, Out, progress_bars


@dataclass(frozen=True, kw_only=True)
class PlanArguments(OutputArguments):
    out: Out
    """Folder for the results and, in runs/, runs. Commands with the same folder share runs; start it twice for two GPUs."""
    groups: tuple[str, ...] = ()
    """Groups of scenes as NAME=FOLDER,FOLDER (PatchSets, or folders of them). Train on one group, test on the others."""
    phototour: Path | None = None
    """Instead of --groups: a folder with PhotoTour's liberty, notredame and yosemite."""
    scale: Literal["small", "full"] = "small"
    """small: 400 iterations of 256 pairs. full: 200 000 iterations, each method's own batch size."""
    iterations: int | None = None
    """Number of training steps; default: see --scale."""
    batch_size: int | None = None
    """Matching pairs per batch; default: see --scale."""
    checkpoint_pairs: int | None = None
    """Number of test pairs, over all scenes, on which each checkpoint is evaluated. Default: 4000 (small) or all (full)."""
    plan: Flag = False
    """Only print which runs would be trained and how long it would take."""
    finished: Flag = False
    """Do not train; use the runs that are finished."""

    def budget(self) -> Budget:
        if self.plan and self.finished:
            raise InputError("--plan and --finished exclude each other: give one of them.")
        given = SMALL_BUDGET if self.scale == "small" else FULL_BUDGET
        for name in ("iterations", "batch_size", "checkpoint_pairs"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise InputError(f"--{name.replace('_', '-')} must be at least 2, not {value}.")
        return Budget(
            self.iterations or given.iterations,
            self.batch_size or given.batch_size,
            given.checkpoints,
            self.checkpoint_pairs or given.checkpoint_pairs,
        )

    def open_groups(self) -> list[Group]:
        self.require_folder()
        with progress_bars() as on_progress:
            return open_groups(self.groups, self.phototour, on_progress)

    def data_sentence(self, groups: Sequence[Group], left_out: Sequence[str] = ()) -> str:
        parts = []
        for group in groups:
            names, patches = ", ".join(one.name for one in group.train), sum(len(one) for one in group.train)
            parts.append(f"{group.name} = {names} ({patches} patches, {group.pairs(left_out)} test pairs)")
        drawn = [name for group in groups for name in group.drawn]
        kinds = {one.origin.get("source") for group in groups for one in group.train}
        kind = "UBC PhotoTour's subsets"
        if self.phototour is None:
            photos = " made from photos" if kinds <= {"photos", "views"} else ""
            kind = f"Groups of scenes{photos}{'' if 'PhotoTour' in kinds else ', not PhotoTour'}"
        drawn_sentence = f" Test pairs drawn with a fixed seed: {', '.join(drawn)}." if drawn else ""
        return f"{kind}: {'; '.join(parts)}. A group's score is the mean over its scenes.{drawn_sentence}"

    def print_plan(self, runs: Sequence[Planned], then: Then = NOTHING_MORE) -> None:
        unique = unique_runs(runs)
        require_batches(unique)
        rates = seconds_per_iteration(unique, self.out)
        if not self.json:
            announce(unique, self.out, rates, then)
            return
        later = (
            {"runs": then.runs, "what": then.what, "seconds": seconds_of(then, unique, rates)} if then.runs else None
        )
        print(json.dumps({"runs": plan_content(unique, self.out, rates), "then": later}, indent=2))


class Done(NamedTuple):
    """Runs that have a result, their results on common scenes, and sentences about them for the caption."""

    runs: list[Planned]
    results: list[Result]
    notes: str
    left_out: list[str]  # test scenes that were not the same for all


@dataclass(frozen=True, kw_only=True)
class SDGMNetArguments(PlanArguments):
    """For figures of SDGMNet's own runs."""

    train: tuple[str, ...] = ()
    """Groups to train on, each tested on all others; default: all."""

    def open_trained(self, everywhere: bool = True) -> tuple[list[Group], list[Group]]:
        """All groups, and those to train on: those of --train, otherwise all or only the first."""
        groups = self.open_groups()
        if self.train:
            return groups, [find_group(groups, name) for name in dict.fromkeys(self.train)]
        return groups, groups if everywhere else groups[:1]

    def open_one_trained(self) -> tuple[list[Group], Group]:
        """All groups, and the one to train on: that of --train, otherwise the first (of PhotoTour Liberty, as in the paper)."""
        if len(set(self.train)) > 1:
            raise InputError(f"--train {' '.join(self.train)}: this figure needs runs on one group; name one.")
        groups, trained = self.open_trained(everywhere=False)
        return groups, trained[0]

    def carry_out(self, planned: Sequence[Planned]) -> Done | None:
        """None if only the plan was asked for."""
        unique, state = unique_runs(planned), ""
        if not self.finished:
            require_comparable(unique, self.out)
        if self.plan:
            self.print_plan(planned)
            return None
        if self.finished:
            runs, found = finished_runs(planned, self.out)
            lacking = len(unique) - len(unique_runs(runs))
            state = f" Incomplete: {lacking} of the {len(unique)} runs are missing." if lacking else ""
        else:
            runs, found = list(planned), run_plan(planned, self.out)
        results = compared(groups_tested(runs), found)
        return Done(runs, results, data_notes(runs, found) + state, scenes_left_out(found))

    def caption(self, what: str, groups: Sequence[Group], trained: Sequence[Group], done: Done, seeds: int = 1) -> str:
        names = ", ".join(group.name for group in trained)
        return (
            f"{what} FPR@95 in %, lower is better. {self.data_sentence(groups, done.left_out)} Trained on {names}, tested on "
            f"the others. {self.budget().sentence()}; {seeds} seed{'s' if seeds > 1 else ''}.{done.notes}"
        )


def require_seeds(seeds: int, option: str = "--seeds") -> None:
    if seeds < 1:
        raise InputError(f"{option} must be at least 1, not {seeds}.")
