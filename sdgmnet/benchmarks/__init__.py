"""Benchmarks: data and describing functions in, rows out.

To add one, write `sdgmnet/benchmarks/NAME.py` and a line in BENCHMARKS; `sdgmnet evaluate NAME` then exists, with its help.
"""

# Name -> (module:function, summary). A function `run(describe_fn, root)` returns a dictionary per row of the table, and the
# command has the common options: DESCRIPTORS, --root, -o, --json. A function `main(words)` parses its own options.
BENCHMARKS: dict[str, tuple[str, str]] = {
    "phototour": (
        "sdgmnet.commands.evaluate_phototour:main",
        "False positive rate at 95 % recall on labelled pairs of patches (the paper's Table 1).",
    ),
    "hpatches": (
        "sdgmnet.commands.evaluate_hpatches:main",
        "HPatches: patch verification, image matching, patch retrieval (Fig. 4).",
    ),
    "matching": (
        "sdgmnet.commands.evaluate_matching:main",
        "Matching of image pairs with known homographies: matching score, MMA, homography error (Fig. 5).",
    ),
    "reconstruction": (
        "sdgmnet.commands.evaluate_reconstruction:main",
        "ETH benchmark: COLMAP reconstructions from the matches of each descriptor (Table 5).",
    ),
}
