"""One colour a method, whatever else its label says."""

from pathlib import Path

from sdgmnet.plots import (
    COLOURS,
    FURTHER_COLOURS,
    MARKERS,
    SAME,
    colour_of,
    marker_of,
    method_of,
    new_figure,
    save_print,
)


def test_labels_find_their_method() -> None:
    assert method_of("HardNet+FRN") == "hardnet+frn"
    assert method_of("HardNet") == method_of("hardnet-original") == method_of("paper, HardNet") == "hardnet"
    assert method_of("sdgm") == method_of("SDGMNet, 2 seeds") == "sdgmnet"
    assert method_of("RootSIFT") == "rootsift"
    assert method_of("mine") is None
    assert colour_of("cdf") == COLOURS["cdfdesc"]
    assert colour_of("mine", 1) == FURTHER_COLOURS[1]


def test_all_are_told_apart() -> None:
    assert set(COLOURS) == set(MARKERS) >= set(SAME.values())
    assert len({*COLOURS.values(), *FURTHER_COLOURS}) == len(COLOURS) + len(FURTHER_COLOURS)
    everything = [marker_of(name) for name in COLOURS] + [marker_of("mine", place) for place in range(7)]
    assert len(set(everything)) == len(everything)


def test_printed_twice_is_the_same(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        figure, axes = new_figure(1, 1, 2, 2)
        axes[0, 0].plot([0, 1])
        written.append([path.read_bytes() for path in save_print(figure, tmp_path / name)])
    assert written[0] == written[1]
    assert written[0][0][:4] == b"\x89PNG" and written[0][1][:5] == b"%PDF-"
