"""`python -m bench train ...`: speed measurements."""

import sys

from sdgmnet.cli import Command, main

COMMANDS: dict[str, Command] = {
    "train": Command("bench.commands:train", "Speed of a training step."),
    "infer": Command("bench.commands:infer", "Speed and memory of describing patches."),
    "loss": Command("bench.commands:loss", "Speed and memory of the loss and its negative mining."),
    "data": Command("bench.commands:data", "Speed of sampling training batches."),
    "match": Command("bench.commands:match", "Speed of matching descriptors."),
    "pictures": Command("bench.commands:pictures", "Speed of matching two images, stage by stage."),
    "hpatches": Command("bench.commands:hpatches", "Speed of the three HPatches tasks at full size."),
    "distributed": Command("bench.commands:distributed", "Speed of training with one process and with two (torchrun)."),
    "all": Command("bench.commands:everything", "All of these but distributed, in one table."),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m bench"))
