"""`sdgmnet evaluate NAME` for benchmarks that are registered as a function `run(describe_fn, root) -> rows`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from sdgmnet.descriptors import COMPARED, load_descriptors
from sdgmnet.options import AsJson, Option, OptionalOut, Positional
from sdgmnet.report import Section, deliver, progress_bars, track

Run = Callable[[Callable[[np.ndarray], np.ndarray], Path], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class Arguments:
    descriptors: Annotated[Positional[tuple[str, ...]], Option(metavar="DESCRIPTOR", help=COMPARED)]
    root: Path
    """Folder of the benchmark."""
    out: OptionalOut = None
    """Folder for results.json and table.md."""
    json: AsJson = False


def run_benchmark(name: str, run: Run, arguments: Arguments) -> None:
    """run: a function from patches (N, S, S) uint8 to descriptors (N, D), and the benchmark's folder -> dictionaries."""
    descriptors = load_descriptors(arguments.descriptors)
    with progress_bars() as on_progress:
        lines = [
            (one.label, [dict(row) for row in run(one.describe, arguments.root)])
            for one in track(descriptors, name, on_progress)
        ]
    rows = [(label, row) for label, of_label in lines for row in of_label]
    columns = list(dict.fromkeys(key for _, row in rows for key in row))
    body = [[label, *(_cell(row.get(key)) for key in columns)] for label, row in rows]
    section = Section(f"{name} ({arguments.root})", "", ["descriptor", *columns], body)
    results = {"benchmark": name, "lines": [{"label": label, "rows": of_label} for label, of_label in lines]}
    deliver(results, [section], arguments.out, arguments.json)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
