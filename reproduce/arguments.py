"""The options of all commands, and what those that train have in common.

Nothing slow is imported before a method needs it: help and errors do not wait for torch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from reproduce.output import OutputArguments
from reproduce.published import METHODS, Presets
from sdgmnet.data.hpatches.tasks import PAIRS
from sdgmnet.descriptors import COMPARED
from sdgmnet.errors import InputError
from sdgmnet.options import Flag, Option, Out, Positional, require_options
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import progress_bars

if TYPE_CHECKING:
    from reproduce.groups import Group
    from reproduce.results import Result
    from reproduce.runner import Then
    from reproduce.runs import Budget, Planned

MARGINS = (0.0, 0.3, 0.5, 0.6, 0.7)
ALPHAS = (0.8, 0.85, 0.9, 0.95, 1.0)


@dataclass(frozen=True, kw_only=True)
class PlanArguments(OutputArguments):
    out: Out
    """Folder for the results and, in runs/, runs. Commands with the same folder share runs; start it twice for two GPUs."""
    groups: Annotated[tuple[str, ...], Option(metavar="NAME=FOLDER,FOLDER")] = ()
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

    def budget(self) -> "Budget":
        from reproduce.runs import FULL_BUDGET, SMALL_BUDGET, Budget

        if self.plan and self.finished:
            raise InputError("--plan and --finished exclude each other: give one of them.")
        given = SMALL_BUDGET if self.scale == "small" else FULL_BUDGET
        require_options(self, iterations=2, batch_size=2, checkpoint_pairs=2)
        return Budget(
            self.iterations or given.iterations,
            self.batch_size or given.batch_size,
            given.checkpoints,
            self.checkpoint_pairs or given.checkpoint_pairs,
        )

    def open_groups(self) -> "list[Group]":
        from reproduce.groups import open_groups

        with progress_bars() as on_progress:
            return open_groups(self.groups, self.phototour, on_progress)

    def data_sentence(self, groups: "Sequence[Group]", left_out: Sequence[str] = ()) -> str:
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

    def print_plan(self, runs: "Sequence[Planned]", then: "Then | None" = None) -> None:
        from reproduce import runner
        from reproduce.runs import unique_runs

        then, unique = then or runner.NOTHING_MORE, unique_runs(runs)
        runner.require_batches(unique)
        rates = runner.seconds_per_iteration(unique, self.out)
        if not self.json:
            runner.announce(unique, self.out, rates, then)
            return
        later = {**then._asdict(), "seconds": runner.seconds_of(then, unique, rates)} if then.runs else None
        print(json.dumps({"runs": runner.plan_content(unique, self.out, rates), "then": later}, indent=2))


class Done(NamedTuple):
    """Runs that have a result, their results on common scenes, and sentences about them for the caption."""

    runs: "list[Planned]"
    results: "list[Result]"
    notes: str
    left_out: list[str]  # test scenes that were not the same for all


@dataclass(frozen=True, kw_only=True)
class SDGMNetArguments(PlanArguments):
    """For figures of SDGMNet's own runs."""

    train: tuple[str, ...] = ()
    """Groups to train on, each tested on all others; default: all."""

    def open_trained(self, everywhere: bool = True) -> "tuple[list[Group], list[Group]]":
        """All groups, and those to train on: those of --train, otherwise all or only the first."""
        from reproduce.groups import find_group

        groups = self.open_groups()
        if self.train:
            return groups, [find_group(groups, name) for name in dict.fromkeys(self.train)]
        return groups, groups if everywhere else groups[:1]

    def open_one_trained(self) -> "tuple[list[Group], Group]":
        """All groups, and the one to train on: that of --train, otherwise the first (of PhotoTour Liberty, as in the paper)."""
        if len(set(self.train)) > 1:
            raise InputError(f"--train {' '.join(self.train)}: this figure needs runs on one group; name one.")
        groups, trained = self.open_trained(everywhere=False)
        return groups, trained[0]

    def carry_out(self, planned: "Sequence[Planned]") -> Done | None:
        """None if only the plan was asked for."""
        from reproduce.results import compared, scenes_left_out
        from reproduce.runner import run_plan
        from reproduce.runs import data_notes, finished_runs, groups_tested, require_comparable, unique_runs

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

    def caption(
        self, what: str, groups: "Sequence[Group]", trained: "Sequence[Group]", done: Done, seeds: int = 1
    ) -> str:
        names = ", ".join(group.name for group in trained)
        return (
            f"{what} FPR@95 in %, lower is better. {self.data_sentence(groups, done.left_out)} Trained on {names}, tested on "
            f"the others. {self.budget().sentence()}; {seeds} seed{'s' if seeds > 1 else ''}.{done.notes}"
        )


@dataclass(frozen=True, kw_only=True)
class Table1Arguments(PlanArguments):
    """Table 1: FPR@95 of nine methods, trained on one group of scenes and tested on the others.

    Prints the plan and its cost, trains what is missing, and writes table1.md, .json, .png and .pdf. Ctrl-C stops it; the same
    command continues, and no finished run is trained twice.

        python -m reproduce table1 --groups A=sets/castle,sets/dog B=sets/rock C=sets/temple -o paper
        python -m reproduce table1 --phototour ubc --scale full -o paper
        python -m reproduce table1 --groups ... --preset sdgm -o paper     # writes table1-sdgm.md, ...
    """

    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to train and compare."""
    preset: Presets = "table"
    """native: each paper's settings. sdgm: SDGMNet's, other loss. table: sdgm for HardNet+FRN and HyNet, native for others."""
    seeds: int = 1
    """Number of seeds per method and training group."""
    best_seeds: int = 2
    """Number of seeds of the three best methods, by the FPR@95 of their last checkpoints."""


@dataclass(frozen=True, kw_only=True)
class EverythingArguments(OutputArguments):
    """The paper's comparison with all its rows, from networks trained here on equal terms.

    For example:

        python -m reproduce everything --data sets --holdout dog lund5 --validation lund6 -o all --sequences sequences

    Searches a learning rate for each loss, trains all rows, and measures Table 1, Fig. 4, Fig. 5 and Table 5 with the same
    networks. Start it twice to share the plan between two processes. Ctrl-C stops it, the same command continues. OUT/records
    has all numbers without weights; `python -m reproduce answer` makes the tables from them.
    """

    data: tuple[str, ...]
    """Training data: PatchSets, or folders of them."""
    holdout: tuple[str, ...]
    """Names of the sets to test on; their scenes are not trained on."""
    validation: str
    """Name of the set on which learning rates are chosen; the search does not train on its scene, the rows do."""
    sequences: Path | None = None
    """Folder of sequences in HPatches' layout, for Fig. 4 and Fig. 5; default: leave them out."""
    reconstruction: Path | None = None
    """Folder of sets of photos, for Table 5; default: leave it out."""
    pairs: int = 300_000
    """Training pairs per run."""
    search_pairs: int = 30_000
    """Training pairs per run of the search for learning rates."""
    batch_size: int = 1024
    """Matching pairs per batch; recipes with a smaller one of their own keep it with the preset native."""
    seeds: int = 3
    """Number of seeds of SDGMNet, HardNet+FRN, HyNet, SOSNet and CDFDesc with the preset sdgm. Other rows have one."""
    only: tuple[str, ...] = tuple(name for name, method in METHODS.items() if method.recipe is not None)
    """Rows to train."""
    encoder: Literal["sdgmnet", "fast"] = "sdgmnet"
    """Network of all rows of the preset sdgm. fast: an eighth of the operations, not the paper's."""
    window: float | None = None
    """Side of the training patches in sigmas, as in sdgmnet train; default: that of the narrowest set."""
    scenes_per_batch: int | None = None
    """Number of scenes in a batch, as in sdgmnet train; default: all."""
    threads: int | None = 1
    """CPU threads of each training; results depend on it in the last bits."""
    checkpoint_pairs: int = 2000
    """Number of test pairs, over all scenes, on which each checkpoint is evaluated; the last one is evaluated on all."""
    plan: Flag = False
    """Only print the runs, pairs and hours."""
    finished: Flag = False
    """Do not train; measure the runs that are finished."""


@dataclass(frozen=True, kw_only=True)
class AnswerArguments(OutputArguments):
    """One page from the records of `everything`: which claims of the paper show, with intervals, and all tables.

    For example:

        python -m reproduce answer reproduce/records/comparison -o docs/paper
    """

    records: Positional[Path]
    """Folder of records."""


@dataclass(frozen=True, kw_only=True)
class StagesArguments(OutputArguments):
    """Tables 2-4: the running statistics at five stages of training, next to those of the authors' logs.

    For example:

        python -m reproduce table2-4 runs/liberty runs/notredame -o paper
    """

    runs: Positional[tuple[Path, ...]]
    """Folders of finished runs that were trained with SDGMNet's loss."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkArguments(OutputArguments):
    descriptors: Annotated[Positional[tuple[str, ...]], Option(metavar="DESCRIPTOR", help=COMPARED)] = ()
    root: Path | None = None
    """Folder of the benchmark's data."""


@dataclass(frozen=True, kw_only=True)
class Fig4Arguments(BenchmarkArguments):
    """Fig. 4: the three HPatches tasks, next to published results.

    For example:

        python -m reproduce fig4 SIFT=sift RootSIFT=rootsift sdgmnet --root hpatches-release -o fig4

    Results of the same descriptors, options and data in -o are reused. From results of sdgmnet evaluate hpatches:

        python -m reproduce fig4 --results results -o fig4
    """

    root: Path | None = None
    """Folder of HPatches sequences, each with the strips ref.png, e1.png ... t5.png."""
    split: Literal["a", "b", "c", "full", "illum", "view", "all"] = "a"
    """Official split, or all: every sequence in the folder."""
    tasks: Path | None = None
    """Folder of official task files (verif_*.csv, retr_*.csv). Missing ones are drawn at random as the official code does."""
    pairs: int = PAIRS
    """Without official task files: number of verification pairs to draw per noise level and kind of negatives."""
    results: Path | None = None
    """Instead of descriptors: output folder of sdgmnet evaluate hpatches. Nothing is run."""


@dataclass(frozen=True, kw_only=True)
class Fig5Arguments(BenchmarkArguments):
    """Fig. 5: matches of 200 random keypoints with all keypoints of the other image, for the hardest pair of each sequence.

    For example:

        python -m reproduce fig5 SIFT=sift HardNet=kornia:HardNet sdgmnet --root hpatches-sequences-release -o fig5

    Results of the same descriptors, options and data in -o are reused. The paper prints no numbers with this figure; fig5.md
    has the number of correct matches.
    """

    root: Path | None = None
    """Folder of sequences in HPatches' layout: 1.png ... 6.png and H_1_2 ... H_1_6 each."""
    sequences: tuple[str, ...] = ()
    """Names of the sequences to use; default: all."""


@dataclass(frozen=True, kw_only=True)
class Table5Arguments(BenchmarkArguments):
    """Table 5: reconstruct with COLMAP from the matches of each descriptor, next to the paper's numbers.

    For example:

        python -m reproduce table5 SIFT=sift sdgmnet --root sets -o table5

    Results of the same descriptors, options and data in -o are reused, and an interrupted benchmark continues. From results of
    sdgmnet evaluate reconstruction, also unfinished ones:

        python -m reproduce table5 --results results -o table5
    """

    root: Path | None = None
    """Folder of sets of photos, or one set."""
    sets: tuple[str, ...] = ()
    """Names of the sets to use; default: all."""
    detector: Literal["colmap", "opencv"] = "colmap"
    """Detector for sets without keypoints: COLMAP's SIFT or OpenCV's SIFT."""
    dense: Flag = False
    """Also count dense points."""
    threads: int = 2
    """Number of threads."""
    results: Path | None = None
    """Instead of descriptors: output folder of sdgmnet evaluate reconstruction, complete or not. Nothing is run."""


@dataclass(frozen=True, kw_only=True)
class RunArguments(OutputArguments):
    run: Positional[Path]
    """Folder of a finished run."""


@dataclass(frozen=True, kw_only=True)
class NetworkArguments(OutputArguments):
    data: str = "demo"
    """A PatchSet, a PhotoTour folder, or demo."""
    weights: str = ALIAS
    """The shipped weights (sdgmnet), a .safetensors file or the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class Fig1Arguments(NetworkArguments):
    """Fig. 1 for a hard and an easy triplet of a real batch: patches, positions on the sphere, modulated gradients.

    For example:

        python -m reproduce fig1 --data my_patches/dog -o fig1

    The negative of each pair is the nearest one in a batch of random points. The three angles of a triplet are drawn to scale,
    as a triangle on a sphere. The length of an arrow is SDGM's weight with the statistics of this batch.
    """

    points: int = 256
    """Number of points in the batch, two patches each."""
    margin: float = 0.6
    """Margin m of Eq. (11)."""
    seed: int = 0
    """Random seed for the choice of points."""


@dataclass(frozen=True, kw_only=True)
class Fig2Arguments(RunArguments):
    """Fig. 2: the self weights, the probabilistic margin and their product, over the angles at the end of a run.

    For example:

        python -m reproduce fig2 runs/one -o fig2
    """


@dataclass(frozen=True, kw_only=True)
class ModulationArguments(OutputArguments):
    """Plot the gradient of each loss over the angles of a triplet, measured by autograd.

    For example:

        python -m reproduce modulation sdgm hardnet cdf hynet pml:CircleLoss,m=0.4,gamma=80 --run runs/one -o modulation

    In a batch, one triplet has the angles (θ⁺, θ⁻) and all other descriptors are orthogonal. Autograd gives the derivatives of
    the loss by these two angles: over the whole plane, along curves and at the angles of a real run. The figure has the form
    of the paper's Fig. 2, one row per loss, scaled by its largest value. Running statistics are those of --run.
    """

    losses: Annotated[Positional[tuple[str, ...]], Option(metavar="LOSS")]
    """Losses as for sdgmnet train --loss, with options after commas, such as sdgm, tfeat,margin=1 or my_loss.py:MyLoss."""
    run: Path | None = None
    """Finished run that gives angles and loss settings; default: normal distribution fitted to the authors' log of Liberty."""
    grid: int = 32
    """Number of grid cells per axis of the plane."""
    pairs: int = 24
    """Pairs per batch. Losses that sum over all negatives depend on it."""


@dataclass(frozen=True, kw_only=True)
class Fig3Arguments(OutputArguments):
    """Fig. 3: diagram of an encoder, layer by layer, read from the module.

    For example:

        python -m reproduce fig3 sdgmnet -o fig3
    """

    encoder: Positional[str] = ALIAS
    """Untrained encoder (sdgmnet, l2net or tfeat), a .safetensors file or the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class Fig6aArguments(SDGMNetArguments):
    """Fig. 6 (a): FPR@95 of SDGMNet along training, one curve per training group, the best checkpoint marked.

    For example:

        python -m reproduce fig6a --groups A=sets/castle B=sets/rock C=sets/temple -o paper
    """


@dataclass(frozen=True, kw_only=True)
class ReproducibilityArguments(SDGMNetArguments):
    """Section V-A: SDGMNet trained with several seeds; mean and standard deviation of the top ten checkpoints.

    For example:

        python -m reproduce reproducibility --groups A=sets/castle B=sets/rock C=sets/temple --seeds 3 -o paper
    """

    seeds: int = 3
    """Number of seeds per training group; the paper uses 10."""


@dataclass(frozen=True, kw_only=True)
class Fig6bArguments(SDGMNetArguments):
    """Fig. 6 (b): train SDGMNet with different margins m and attenuations α, varied one at a time.

    For example:

        python -m reproduce fig6b --groups A=sets/castle B=sets/rock C=sets/temple -o paper
    """

    margins: tuple[float, ...] = MARGINS
    """Values of m, with α = 0.9."""
    alphas: tuple[float, ...] = ALPHAS
    """Values of α, with m = 0.6."""
    train: tuple[str, ...] = ()
    """The group to train on, tested on all others; default: the first one."""
    seeds: int = 1
    """Number of seeds per value."""


@dataclass(frozen=True, kw_only=True)
class Fig7Arguments(SDGMNetArguments):
    """Fig. 7: the attenuation α against HPatches' mAP and ΔmAP = mAP(easy) - mAP(tough), of the last checkpoints.

    Runs are shared with fig6b. Use sdgmnet data hpatches to cut strips from your own sequences.

        python -m reproduce fig7 --groups A=sets/castle B=sets/rock C=sets/temple --hpatches strips -o paper
    """

    hpatches: Annotated[Path | None, Option(aliases=("--root",))] = None
    """Folder of HPatches sequences, each with the strips ref.png, e1.png ... t5.png."""
    split: Literal["a", "b", "c", "full", "illum", "view", "all"] = "all"
    """Official split (the paper uses a), or all: every sequence in the folder."""
    pairs: int = PAIRS
    """Number of verification pairs to draw per noise level and kind of negatives."""
    alphas: tuple[float, ...] = ALPHAS
    """Values of α, with m = 0.6."""
    train: tuple[str, ...] = ()
    """The group to train on; default: the first one."""


@dataclass(frozen=True, kw_only=True)
class Fig6cArguments(SDGMNetArguments):
    """Fig. 6 (c): four self weights with and without power adjustment, and the ratios of powers of Section V-D.

    HyNet and HardNet+FRN are drawn as dashed lines. Runs of table1 in the same folder are reused.

        python -m reproduce fig6c --groups A=sets/castle B=sets/rock C=sets/temple --seeds 2 -o paper
    """

    train: tuple[str, ...] = ()
    """Groups to train on, each tested on all others; default: the first one at small scale, all at full scale."""
    seeds: int = 1
    """Number of seeds per variant and training group."""


@dataclass(frozen=True, kw_only=True)
class LearningRateArguments(RunArguments):
    """Section III-E: the equivalent learning rate of a run with SDGM's loss: its power starts high, its first steps are small.

    For example:

        python -m reproduce learning-rate runs/one -o learning_rate

    f(t) = P / E_t[P] is the mean power of the batches of an epoch over the running power at its end. It rises from about 0.1
    to 1, and drops when the warm-up ends, because the weights then fall below 1.
    """


@dataclass(frozen=True, kw_only=True)
class MarginShareArguments(RunArguments):
    """The share of triplets beyond the probabilistic margin m, for the angles at the end of a run.

    For example:

        python -m reproduce margin-share runs/one -o margin_share

    Section V-B of the paper says fewer than 30 % at m = 0.7. If θʳ were normally distributed, the share would be 1 - m.
    """


@dataclass(frozen=True, kw_only=True)
class NormsArguments(NetworkArguments):
    """Section III-A: plot the feature norm ‖x‖ before normalisation against the contrast of the patch.

    For example:

        python -m reproduce norms --data my_patches/dog --weights runs/one -o norms

    The paper keeps the factor 1/‖x‖ of Eq. (5), because it expects patches of high quality to have large norms.
    """

    patches: int = 4000
    """Maximum number of patches, evenly spread over the set."""
