"""Benchmarks: data and describing functions in, rows out.

To add one, write `sdgmnet/benchmarks/NAME.py` and a line in BENCHMARKS; `sdgmnet evaluate NAME` then exists, with its help.
"""

# Name -> (module:function, summary). A function `run(describe_fn, root)` returns a dictionary per row of the table, and the
# command has the common options: DESCRIPTORS, --root, -o, --json. A command with other options names their dataclass, too.
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "phototour": (
        "sdgmnet.commands.evaluate_phototour:main",
        "False positive rate at 95 % recall on labelled pairs of patches (the paper's Table 1).",
        "sdgmnet.commands.evaluate_phototour:Arguments",
    ),
    "hpatches": (
        "sdgmnet.commands.evaluate_hpatches:main",
        "HPatches: patch verification, image matching, patch retrieval (Fig. 4).",
        "sdgmnet.commands.evaluate_hpatches:Arguments",
    ),
    "matching": (
        "sdgmnet.commands.evaluate_matching:main",
        "Matching of image pairs with known homographies: matching score, MMA, homography error (Fig. 5).",
        "sdgmnet.commands.evaluate_matching:Arguments",
    ),
    "reconstruction": (
        "sdgmnet.commands.evaluate_reconstruction:main",
        "ETH benchmark: COLMAP reconstructions from the matches of each descriptor (Table 5).",
        "sdgmnet.commands.evaluate_reconstruction:Arguments",
    ),
}
