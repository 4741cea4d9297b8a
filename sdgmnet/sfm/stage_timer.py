"""How long each stage of a long work took and how much memory it held."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.storage import read_record, write_json


class Times:
    """Seconds and largest memory of each stage, and the largest of all, kept over restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"seconds": {}, "peak_bytes": 0, "peak_bytes_of": {}}
        known = nothing | (read_record(self.path, dict) if self.path.exists() else {})
        tables = (known["seconds"], known["peak_bytes_of"], {"all": known["peak_bytes"]})
        if not all(isinstance(one, dict) and all(isinstance(n, int | float) for n in one.values()) for one in tables):
            raise InputError(f"{self.path} holds no seconds and bytes of stages: remove it.")
        return known

    def peak(self, peak_bytes: int, stage: str | None = None) -> None:
        """Note memory that was held, here or in a process of its own."""
        known = self.read()
        known["peak_bytes"] = max(known["peak_bytes"], peak_bytes)
        if stage is not None:
            known["peak_bytes_of"][stage] = max(known["peak_bytes_of"].get(stage, 0), peak_bytes)
        write_json(self.path, known)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        forget_peak()
        begun = time.perf_counter()
        try:
            yield
        finally:  # what failed took its time too, and what it finished is not repeated
            known = self.read()
            spent = known["seconds"].get(stage, 0.0) + time.perf_counter() - begun
            known["seconds"][stage] = round(spent, 2)
            write_json(self.path, known)
            self.peak(peak_memory(), stage)


def forget_peak() -> None:
    """Let the system measure this process's largest memory anew, where it can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes that this process held at most since `forget_peak`, or ever."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
