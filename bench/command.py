"""What the commands share: the table, and its rows."""

import platform
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from bench.options import Options
from bench.timing import Timing
from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import choose_engine
from sdgmnet.report import OnProgress, Section, deliver, progress_bars

HEADER = ["what", "implementation", "median", "range", "ratio"]
Row = list[str]  # a cell per column of HEADER


Measurement = Callable[[Options, OnProgress], Iterable[Row]]


def command(name: str, *measurements: Measurement) -> Callable[[Options], None]:
    """`python -m bench NAME`: the rows of all measurements in one table."""

    def main(options: Options) -> None:
        with progress_bars() as on_progress:
            rows = [row for measure in measurements for row in measure(options, on_progress)]
        engine = choose_engine("auto", SDGMNet())
        machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, engine {engine}"
        section = Section(f"bench {name} ({machine})", "", HEADER, rows)
        deliver({"machine": machine, "header": HEADER, "rows": rows}, [section], options.out, options.json)

    return main


def rate_row(what: str, timing: Timing, unit: str, reference: Timing | None = None) -> Row:
    ratio = "" if reference is None or reference is timing else f"{timing.against(reference):.2f} x {reference.name}"
    rates = f"{min(timing.rates):.0f} - {max(timing.rates):.0f}"
    return [what, timing.name, f"{timing.median:.0f} {unit}", rates, ratio]


def share_row(what: str, timing: Timing, limit: Timing) -> Row:
    return [what, f"{timing.name} of the limit", f"{100 * timing.against(limit):.0f} %", "", ""]


def seconds_row(what: str, method: str, seconds: Sequence[float], ratio: str = "") -> Row:
    return [what, method, f"{np.median(seconds):.3f} s", f"{min(seconds):.3f} - {max(seconds):.3f}", ratio]


def memory_row(what: str, method: str, megabytes: float, ratio: str = "") -> Row:
    return [f"{what}: memory", method, f"{megabytes:.0f} MB", "", ratio]
