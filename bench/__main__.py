"""`python -m bench train ...`: speed measurements."""

import sys

from sdgmnet.cli import Command, main

COMMANDS: dict[str, Command] = {
    "train": Command("bench.training:train", "Speed and memory of a training step."),
    "loss": Command("bench.training:loss", "Speed and memory of mining and loss."),
    "data": Command("bench.training:data", "Speed of making batches."),
    "infer": Command("bench.inference:infer", "Speed and memory of describing patches."),
    "match": Command("bench.matching:match", "Speed and memory of matching descriptors."),
    "images": Command("bench.matching:images", "Speed of matching two images, stage by stage."),
    "hpatches": Command("bench.hpatches:hpatches", "Speed of HPatches' three tasks at full size."),
    "distributed": Command("bench.distributed:distributed", "Training by one process and by two (torchrun)."),
    "all": Command("bench.everything:main", "All but distributed, in one table."),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m bench"))
