"""Seconds and peak memory of the stages of a long computation, kept on disk over restarts."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.storage import read_record, write_json


class PersistentStageTimer:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """`seconds` and `peak_bytes_of` by stage, and `peak_bytes` of all."""
        empty: dict[str, Any] = {"seconds": {}, "peak_bytes": 0, "peak_bytes_of": {}}
        known = empty | (read_record(self.path, dict) if self.path.exists() else {})
        tables = (known["seconds"], known["peak_bytes_of"], {"all": known["peak_bytes"]})
        if not all(isinstance(one, dict) and all(isinstance(n, int | float) for n in one.values()) for one in tables):
            raise InputError(f"{self.path} is not a valid record of seconds and bytes: remove it.")
        return known

    def add_peak(self, peak_bytes: int, stage: str | None = None) -> None:
        """Record the peak memory of another process."""
        known = self.read()
        known["peak_bytes"] = max(known["peak_bytes"], peak_bytes)
        if stage is not None:
            known["peak_bytes_of"][stage] = max(known["peak_bytes_of"].get(stage, 0), peak_bytes)
        write_json(self.path, known)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the stage, also if it fails: what it finished is not repeated."""
        reset_peak_memory()
        start = time.perf_counter()
        try:
            yield
        finally:
            known = self.read()
            known["seconds"][name] = round(known["seconds"].get(name, 0.0) + time.perf_counter() - start, 2)
            write_json(self.path, known)
            self.add_peak(peak_memory(), name)


def reset_peak_memory() -> None:
    """Let Linux measure the peak memory of this process anew; elsewhere it stays that of the whole process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Peak memory of this process in bytes, since `reset_peak_memory` where the system can."""
    with suppress(OSError):  # unlike getrusage, this does not count what the parent held before a fork
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
