"""The log of a short run."""

from pathlib import Path

import numpy as np

from sdgmnet.storage import new_file
from sdgmnet.training.log import RunLog


def write_log(run: Path) -> None:
    run.mkdir(parents=True)
    log = RunLog(run / "log.jsonl")
    for step in (10, 20):
        angles = {
            f"running_theta_{name}_{kind}": value
            for name in ("pos", "neg")
            for kind, value in (("mean", 1.0), ("std", 0.2))
        }
        powers = {f"{prefix}power_{name}": 300.0 + step for name in ("pos", "neg") for prefix in ("", "running_")}
        log.write("epoch", step, loss=-0.1, **angles, **powers)
        log.write("evaluation", step, fpr95={"church": 0.1 / step, "mean": 0.1 / step})


def write_triplets(run: Path, step: int) -> None:
    """As a run keeps them at an evaluation."""
    patches = np.random.default_rng(step).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)
    with new_file(run / "triplets.npz") as part, open(part, "wb") as stream:
        np.savez(stream, patches=patches, angles=np.array([(1.2, 0.7)] * 2), step=np.array([step]))
