"""Published rows of the ETH reconstruction benchmark, shown next to measured ones (docs/protocols.md 7.3).

Official rows use the ratio test at 0.8 and COLMAP of 2017; the paper's Table 5 has no ratio test and rounds.
"""

from typing import NamedTuple


class Published(NamedTuple):
    label: str
    registered: int
    points: str
    track_length: float
    reprojection_error: float
    dense: str  # by COLMAP's PatchMatch on a GPU, another engine than ours

    def cells(self) -> dict[str, str]:
        """By column of the benchmark's table."""
        errors = {"track": f"{self.track_length:.2f}", "error px": f"{self.reprojection_error:.2f}"}
        figures = {"registered": str(self.registered), "points": self.points, "dense, published": self.dense}
        return {"descriptor": self.label, **figures, **errors}


# Set -> number of photos, rows. Sets are recognised by the letters of their name and their number of photos.
ROWS = {
    "fountain": (11, (
        Published("official SIFT, ratio 0.8", 11, "14722", 4.798, 0.393, "292609"),
        Published("official TFeat, ratio 0.8", 11, "14273", 4.735, 0.373, ""),
        Published("paper, HardNet", 11, "16.3K", 4.91, 0.47, "303K"),
        Published("paper, SOSNet", 11, "16.3K", 4.92, 0.46, "306K"),
        Published("paper, HyNet", 11, "16.5K", 4.93, 0.48, "303K"),
        Published("paper, SDGMNet", 11, "16.5K", 4.94, 0.48, "295K"),
    )),
    "herzjesu": (8, (
        Published("official SIFT, ratio 0.8", 8, "7502", 4.222, 0.432, "241347"),
        Published("official TFeat, ratio 0.8", 8, "7061", 4.14, 0.405, ""),
        Published("paper, HardNet", 8, "8.7K", 4.3, 0.5, "239K"),
        Published("paper, SOSNet", 8, "8.7K", 4.31, 0.5, "239K"),
        Published("paper, HyNet", 8, "8.9K", 4.32, 0.52, "246K"),
        Published("paper, SDGMNet", 8, "9.0K", 4.32, 0.53, "233K"),
    )),
    "southbuilding": (128, (
        Published("official SIFT, ratio 0.8", 128, "108124", 6.048, 0.546, "2141964"),
        Published("paper, HardNet", 128, "159K", 5.18, 0.62, "2.12M"),
        Published("paper, SOSNet", 128, "160K", 5.17, 0.63, "2.12M"),
        Published("paper, HyNet", 128, "166K", 5.14, 0.63, "2.12M"),
        Published("paper, SDGMNet", 128, "166K", 5.16, 0.65, "2.11M"),
    )),
    "madrid": (1344, (
        Published("official SIFT, ratio 0.8", 5, "116088", 6.321, 0.605, "1822434"),
        Published("paper, HardNet", 697, "261K", 4.16, 0.98, "1.27M"),
        Published("paper, SOSNet", 675, "240K", 4.4, 0.94, "1.27M"),
        Published("paper, HyNet", 697, "337K", 3.93, 0.98, "1.25M"),
        Published("paper, SDGMNet", 83, "278K", 4.18, 0.96, "1.30M"),
    )),
    "gendarmenmarkt": (1463, (
        Published("official SIFT, ratio 0.8", 1035, "338972", 5.523, 0.699, "4225031"),
        Published("paper, HardNet", 1018, "827K", 2.56, 1.09, "2.06M"),
        Published("paper, SOSNet", 1129, "729K", 3.85, 0.95, "3.05M"),
        Published("paper, HyNet", 1181, "927K", 3.49, 1.05, "2.93M"),
        Published("paper, SDGMNet", 12, "763K", 4.1, 1.02, "3.25M"),
    )),
}  # fmt: skip


def published(name: str, photos: int) -> tuple[Published, ...]:
    """Rows of the benchmark's set of this name and number of photos, if it is one."""
    letters = "".join(sign for sign in name.lower() if sign.isalpha())
    for known, (count, rows) in ROWS.items():
        if letters.startswith(known) and photos == count:
            return rows
    return ()
