"""The program that ckpt-chaos kills: two small training steps, started or resumed depending on the folder.

python -m tests.trust.chaos_train INPUTS OUT
"""

import sys
from pathlib import Path

from rich.console import Console

from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train


def main(inputs: Path, out: Path) -> None:
    saved = out / "config.json"
    config = TrainConfig(
        data=(str(inputs / "blobs1"),), iterations=2, batch_size=4, checkpoint_every=1, engine="eager", threads=1, seed=3,
        encoder="tfeat", loss="tfeat", dropout=0.0, augmentation="hardnet",
    )  # fmt: skip
    if not saved.exists():
        print("begins at step 0")
    train(
        TrainConfig.load(saved) if saved.exists() else config,
        out,
        resume=saved.exists(),
        console=Console(file=sys.stdout),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
