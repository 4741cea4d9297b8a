"""Published rows of the ETH reconstruction benchmark, to stand beside measured ones (PROTOCOLS.md 7.3).

Official rows use the ratio test at 0.8 and COLMAP of 2017; the paper's Table 5 drops the ratio test and rounds.
"""

from typing import NamedTuple


class Published(NamedTuple):
    label: str
    registered: int
    points: str
    track_length: float
    reprojection_error: float
    dense: str  # by COLMAP's PatchMatch on a GPU, another engine than ours


OFFICIAL, PAPER = "official SIFT, ratio 0.8", "paper, {}"

# Set -> number of photos, rows. Names are compared by their letters, as far as they are given here.
ROWS: dict[str, tuple[int, tuple[Published, ...]]] = {
    "fountain": (
        11,
        (
            Published(OFFICIAL, 11, "14722", 4.798, 0.393, "292609"),
            Published("official TFeat, ratio 0.8", 11, "14273", 4.735, 0.373, ""),
            Published(PAPER.format("HardNet"), 11, "16.3K", 4.91, 0.47, "303K"),
            Published(PAPER.format("SOSNet"), 11, "16.3K", 4.92, 0.46, "306K"),
            Published(PAPER.format("HyNet"), 11, "16.5K", 4.93, 0.48, "303K"),
            Published(PAPER.format("SDGMNet"), 11, "16.5K", 4.94, 0.48, "295K"),
        ),
    ),
    "herzjesu": (
        8,
        (
            Published(OFFICIAL, 8, "7502", 4.222, 0.432, "241347"),
            Published("official TFeat, ratio 0.8", 8, "7061", 4.140, 0.405, ""),
            Published(PAPER.format("HardNet"), 8, "8.7K", 4.30, 0.50, "239K"),
            Published(PAPER.format("SOSNet"), 8, "8.7K", 4.31, 0.50, "239K"),
            Published(PAPER.format("HyNet"), 8, "8.9K", 4.32, 0.52, "246K"),
            Published(PAPER.format("SDGMNet"), 8, "9.0K", 4.32, 0.53, "233K"),
        ),
    ),
    "southbuilding": (
        128,
        (
            Published(OFFICIAL, 128, "108124", 6.048, 0.546, "2141964"),
            Published(PAPER.format("HardNet"), 128, "159K", 5.18, 0.62, "2.12M"),
            Published(PAPER.format("SOSNet"), 128, "160K", 5.17, 0.63, "2.12M"),
            Published(PAPER.format("HyNet"), 128, "166K", 5.14, 0.63, "2.12M"),
            Published(PAPER.format("SDGMNet"), 128, "166K", 5.16, 0.65, "2.11M"),
        ),
    ),
    "madrid": (
        1344,
        (
            Published(OFFICIAL, 500, "116088", 6.321, 0.605, "1822434"),
            Published(PAPER.format("HardNet"), 697, "261K", 4.16, 0.98, "1.27M"),
            Published(PAPER.format("SOSNet"), 675, "240K", 4.40, 0.94, "1.27M"),
            Published(PAPER.format("HyNet"), 697, "337K", 3.93, 0.98, "1.25M"),
            Published(PAPER.format("SDGMNet"), 830, "278K", 4.18, 0.96, "1.30M"),
        ),
    ),
    "gendarmenmarkt": (
        1463,
        (
            Published(OFFICIAL, 1035, "338972", 5.523, 0.699, "4225031"),
            Published(PAPER.format("HardNet"), 1018, "827K", 2.56, 1.09, "2.06M"),
            Published(PAPER.format("SOSNet"), 1129, "729K", 3.85, 0.95, "3.05M"),
            Published(PAPER.format("HyNet"), 1181, "927K", 3.49, 1.05, "2.93M"),
            Published(PAPER.format("SDGMNet"), 1200, "763K", 4.10, 1.02, "3.25M"),
        ),
    ),
}


def published(name: str, photos: int) -> tuple[Published, ...]:
    """Rows of the set of this name, where it is the benchmark's by its number of photos."""
    letters = "".join(sign for sign in name.lower() if sign.isalpha())
    for known, (count, rows) in ROWS.items():
        if letters.startswith(known) and photos == count:
            return rows
    return ()
