"""`python -m bench train ...`: speed measurements."""

import sys

from sdgmnet.cli import Command, main


def command(place: str, summary: str, options: str = "Options") -> Command:
    return Command(f"bench.{place}", summary, f"bench.options:{options}")


COMMANDS: dict[str, Command] = {
    "train": command("training:train", "Speed and memory of a training step."),
    "loss": command("training:loss", "Speed and memory of the loss and its negative mining."),
    "data": command("training:data", "Speed of sampling training batches."),
    "infer": command("inference:infer", "Speed and memory of describing patches."),
    "kernels": command("inference:kernels", "Speed of describing patches with each build of the kernels."),
    "match": command("matching:match", "Speed and memory of matching descriptors."),
    "images": command("matching:images", "Speed of matching two images, stage by stage."),
    "hpatches": command("hpatches:hpatches", "Speed of the three HPatches tasks at full size."),
    "distributed": command("distributed:distributed", "Speed of training with one process and with two (torchrun)."),
    "stability": command(
        "stability:stability",
        "Change of a reconstruction with the JPEG quality of its photos; no speed.",
        "StabilityOptions",
    ),
    "retrieval": command(
        "retrieval:retrieval", "Verified pairs of photos that retrieval keeps, against all pairs.", "RetrievalOptions"
    ),
    "collection": command(
        "collection:collection",
        "Models of many scenes in one folder, against those of each scene alone.",
        "CollectionOptions",
    ),
    "growth": command(
        "growth:growth",
        "Time per photo and memory of matching collections of growing size, killed and continued.",
        "GrowthOptions",
    ),
    "reconstruct": command(
        "reconstruct:reconstruct_command",
        "Time and memory of a sparse model, against COLMAP's own SIFT pipeline.",
        "ReconstructOptions",
    ),
    "all": command("everything:main", "All speed measurements but distributed and kernels, in one table."),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m bench"))
