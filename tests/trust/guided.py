"""Coverage-guided fuzzing of the readers in pure Python, by atheris (libFuzzer).

    python -m tests.trust.guided --seconds 60 --target images

Bytes that reach new lines are kept and changed further; the small valid files are where it starts. Ends with a traceback at
the first escape.
"""

import argparse
import importlib
import os
import sys
import tempfile
import warnings
from pathlib import Path

MODULES = (
    "sdgmnet.storage", "sdgmnet.storage", "sdgmnet.data.hpatches.tasks", "sdgmnet.data.phototour", "sdgmnet.data.sequences",
    "sdgmnet.benchmarks.photo_sets", "sdgmnet.features.eth", "sdgmnet.features.images", "sdgmnet.features.keypoint_files",
    "sdgmnet.sfm.viewer", "sdgmnet.sfm.workspace", "sdgmnet.training.config", "sdgmnet.training.log",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.trust.guided", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--target", default="own keypoints", help="a reader, by its name in tests/trust/readers.py")
    given = parser.parse_args()

    import atheris

    with atheris.instrument_imports(include=list(MODULES)):
        for name in MODULES:
            importlib.import_module(name)
    from sdgmnet.errors import InputError
    from tests.trust.fuzz import write_valid
    from tests.trust.readers import TARGETS, valid_files

    target = TARGETS[given.target]
    names = sorted(target.mutated)
    with tempfile.TemporaryDirectory(prefix="sdgmnet-guided-") as folder:
        work, seeds = Path(folder) / "work", Path(folder) / "seeds"
        work.mkdir()
        seeds.mkdir()
        write_valid(given.target, work)
        for number, name in enumerate(names):
            (seeds / f"{number}").write_bytes(bytes([number]) + valid_files(given.target)[name])

        def one(data: bytes) -> None:
            """The first byte chooses the file."""
            name = names[data[0] % len(names)] if data else names[0]
            (work / name).write_bytes(data[1:])
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    target.read(work)
            except InputError:
                pass
            finally:
                (work / name).write_bytes(valid_files(given.target)[name])

        os.chdir(folder)  # libFuzzer writes failing inputs here
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={given.seconds}", "-rss_limit_mb=4096", "-timeout=10", str(seeds)], one
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
