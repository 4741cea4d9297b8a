"""What every command does at its start and at its end: check folders, caption a run, write tables, JSON and the figure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdgmnet.errors import InputError
from sdgmnet.options import AsJson, Out
from sdgmnet.report import Section, print_aside, print_sections, sections_markdown
from sdgmnet.storage import read_record, write_json, write_text
from sdgmnet.training.config import TrainConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = tuple[list[str], list[list[str]]]  # header, rows


@dataclass(frozen=True, kw_only=True)
class OutputArguments:
    out: Out
    """Folder for the tables (.md), the results (.json) and the figure (.png and .pdf)."""
    json: AsJson = False

    def __post_init__(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"{self.out} is a file: give the name of a folder.")

    def deliver(
        self,
        name: str,
        results: dict[str, Any],
        sections: Sequence[Section],
        draw: Callable[[Path], Sequence[Path]],
        concerns: Sequence[str] | None = None,
        latest: bool = True,
    ) -> None:
        """Print the tables; write NAME.md and NAME.json, with `latest` also as table.md and results.json, then the figure.

        draw: called with OUT/NAME, returns the files it wrote. It comes last, so that a failure there loses no numbers.
        concerns: sentences about runs whose numbers say nothing about their method.
        """
        warnings = "\nWarnings:\n\n" + "".join(f"- {one}\n" for one in concerns) if concerns else ""
        if concerns is not None:
            results = {**results, "concerns": list(concerns)}
        if self.json:
            print(json.dumps(results, indent=2))
        else:
            print_sections(sections)
            print(warnings, end="")
        files = [f"{name}.md", f"{name}.json"]
        copies = ["table.md", "results.json"] if latest else []
        for table, record in [files, copies] if latest else [files]:
            write_json(self.out / record, results)
            write_text(self.out / table, sections_markdown(sections) + warnings)
        files += [path.name for path in draw(self.out / name)] + copies
        print_aside(f"Written to {self.out}: {', '.join(files)}.")


def both_kinds(draw: Callable[..., None], stem: Path) -> list[Path]:
    """The paths STEM.png and STEM.pdf, each drawn by draw(path=...)."""
    paths = [Path(f"{stem}.{kind}") for kind in ("png", "pdf")]
    for path in paths:
        draw(path=path)
    return paths


def draw_arrow(
    axis: "Axes", start: tuple[float, float], end: tuple[float, float], colour: str, linewidth: float, head: float
) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": linewidth, "mutation_scale": head}
    axis.annotate("", xy=end, xytext=start, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})


def require_run(run: Path) -> None:
    if not run.is_dir():
        raise InputError(f"{run} is not a folder: give the folder of a run.")
    if not (run / "config.json").is_file():
        raise InputError(f"{run} is not the folder of a run: it has no config.json.")


def caption_of_run(run: Path) -> str:
    """Data and budget of a run in one sentence, without paths of this machine."""
    config, card = TrainConfig.load(run / "config.json"), run / "last.json"
    names = [Path(one).name for one in config.data]
    if card.exists():
        names = read_record(card, {"trained_on": [str]})["trained_on"]
    loss = Path(config.loss).name + (_variant(config) if config.loss == "sdgm" else "")
    initial = "" if config.init is None else f", initial weights {Path(config.init).name}"
    return (
        f"Run {run.resolve().name}: {config.encoder} by {loss} on {', '.join(names)}, {config.iterations} iterations{initial}, "
        f"N = {config.batch_size}, seed {config.seed}."
    )


def _variant(config: TrainConfig) -> str:
    """How SDGM's loss differs from the paper's, if it does."""
    changed = [
        f"{what} {config.loss_setting(name)}"
        for name, what in (("self_weight", "self weight"), ("coupled_weight", "coupled weight"))
        if config.loss_setting(name) != TrainConfig().loss_setting(name)
    ]
    changed += [] if config.loss_setting("power_adjustment") else ["no power adjustment"]
    return f" ({', '.join(changed)})" if changed else ""
