"""One colour and one marker a method, the same in every figure; colour-blind readers tell the common ones apart."""

COLOURS = {
    "sift": "#000000",
    "rootsift": "#7f7f7f",
    "tfeat": "#a6761d",
    "l2net": "#b3a500",
    "hardnet": "#56b4e9",
    "cdfdesc": "#e69f00",
    "sosnet": "#cc79a7",
    "hardnet+frn": "#0072b2",
    "hynet": "#009e73",
    "sdgmnet": "#d55e00",
    "keller": "#8da0cb",
    "exp-tl": "#66a61e",
    "sface": "#7570b3",
}
MARKERS = {
    "sift": "x",
    "rootsift": "+",
    "tfeat": "v",
    "l2net": "<",
    "hardnet": "^",
    "cdfdesc": ">",
    "sosnet": "D",
    "hardnet+frn": "s",
    "hynet": "P",
    "sdgmnet": "o",
    "keller": "h",
    "exp-tl": "p",
    "sface": "*",
}
# What a loss or a recipe is called otherwise.
SAME = {"sdgm": "sdgmnet", "cdf": "cdfdesc", "hardnet-original": "hardnet", "hardnetfrn": "hardnet+frn"}
# For everything else, by its place among the others.
FURTHER_COLOURS = ("#882255", "#44aa99", "#999933", "#332288", "#aa4466", "#117733", "#ddcc77")
FURTHER_MARKERS = ("d", "8", "X", "H", "1", "2", "3")
POSITIVE, NEGATIVE, RELATIVE = "#2166ac", "#b2182b", "#4d4d4d"  # θ⁺, θ⁻, θʳ


def method_of(label: str) -> str | None:
    """The known method that a label begins with, as "HardNet+FRN, 2 seeds" does, or None: the longest such name."""
    plain = label.lower().replace(" ", "").removeprefix("paper,").removeprefix("kornia")
    known = [name for name in (*COLOURS, *SAME) if plain.startswith(name)]
    longest = max(known, key=len, default=None)
    return None if longest is None else SAME.get(longest, longest)


def colour_of(label: str, place: int = 0) -> str:
    """The method's colour; that of `place` among unknown ones where the label names no known method."""
    method = method_of(label)
    return FURTHER_COLOURS[place % len(FURTHER_COLOURS)] if method is None else COLOURS[method]


def marker_of(label: str, place: int = 0) -> str:
    method = method_of(label)
    return FURTHER_MARKERS[place % len(FURTHER_MARKERS)] if method is None else MARKERS[method]
