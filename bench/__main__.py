"""`python -m bench train ...`: speed measurements."""

import sys

from sdgmnet.cli import Command, main

COMMANDS: dict[str, Command] = {
    "train": Command("bench.training:train", "Speed and memory of a training step.", "bench.options:Options"),
    "loss": Command(
        "bench.training:loss", "Speed and memory of the loss and its negative mining.", "bench.options:Options"
    ),
    "data": Command("bench.training:data", "Speed of sampling training batches.", "bench.options:Options"),
    "infer": Command("bench.inference:infer", "Speed and memory of describing patches.", "bench.options:Options"),
    "kernels": Command(
        "bench.inference:kernels",
        "Speed of describing patches with each build of the kernels.",
        "bench.options:Options",
    ),
    "match": Command("bench.matching:match", "Speed and memory of matching descriptors.", "bench.options:Options"),
    "images": Command(
        "bench.matching:images", "Speed of matching two images, stage by stage.", "bench.options:Options"
    ),
    "hpatches": Command(
        "bench.hpatches:hpatches", "Speed of the three HPatches tasks at full size.", "bench.options:Options"
    ),
    "distributed": Command(
        "bench.distributed:distributed",
        "Speed of training with one process and with two (torchrun).",
        "bench.options:Options",
    ),
    "stability": Command(
        "bench.stability:stability",
        "Change of a reconstruction with the JPEG quality of its photos; no speed.",
        "bench.options:StabilityOptions",
    ),
    "retrieval": Command(
        "bench.retrieval:retrieval",
        "Verified pairs of photos that retrieval keeps, against all pairs.",
        "bench.options:RetrievalOptions",
    ),
    "collection": Command(
        "bench.collection:collection",
        "Models of many scenes in one folder, against those of each scene alone.",
        "bench.options:CollectionOptions",
    ),
    "growth": Command(
        "bench.growth:growth",
        "Time per photo and memory of matching collections of growing size, killed and continued.",
        "bench.options:GrowthOptions",
    ),
    "reconstruct": Command(
        "bench.reconstruct:reconstruct_command",
        "Time and memory of a sparse model, against COLMAP's own SIFT pipeline.",
        "bench.options:ReconstructOptions",
    ),
    "all": Command(
        "bench.everything:main",
        "All speed measurements but distributed and kernels, in one table.",
        "bench.options:Options",
    ),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m bench"))
