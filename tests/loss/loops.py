"""The losses SDGM is compared with, written a second time from their formulas: plain loops in float64, one pair at a time.

All take unit rows (and what else they need) as tensors, so that autograd gives their gradients.
"""

import math

import torch
from torch import Tensor

SAME_PATCH = 0.008


def euclidean(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    return torch.sqrt(2 - 2 * (x @ y) + epsilon)


def plain(x: Tensor, y: Tensor) -> Tensor:
    """Without an epsilon; where the rows coincide, 0 with gradient 0."""
    square = ((x - y) ** 2).sum()
    return torch.sqrt(square) if square.item() > 0 else 0 * square


def nearest(a: Tensor, p: Tensor, i: int, sides: str, epsilon: float) -> Tensor | None:
    """The smallest distance of pair i to another point; sides names the comparisons, as "ap pa aa pp"."""
    best = None
    for j in range(len(a)):
        for ends in sides.split() if j != i else ():
            left, right = ((a if end == "a" else p) for end in ends)
            d = euclidean(left[i], right[j], epsilon)
            if d.item() >= SAME_PATCH and (best is None or d.item() < best.item()):
                best = d
    return best


def hardnet(a: Tensor, p: Tensor, margin: float = 1.0) -> Tensor:
    total = torch.zeros((), dtype=a.dtype)
    for i in range(len(a)):
        d_neg = nearest(a, p, i, "ap pa", 1e-6)
        if d_neg is not None:
            violation = margin + euclidean(a[i], p[i], 1e-6) - d_neg
            total = total + (violation if violation.item() > 0 else 0 * violation)
    return total / len(a)


def hardnet_frn(a: Tensor, p: Tensor, margin: float = 1.0, threshold: float = 0.6, active_only: bool = True) -> Tensor:
    """docs/protocols.md 4, HardNet+FRN: a point is a candidate if the nearest of four comparisons is beyond the threshold."""
    total, active, admissible = torch.zeros((), dtype=a.dtype), 0, 0
    for i in range(len(a)):
        d_neg = None
        for j in range(len(a)):
            cosines = [a[i] @ p[j], p[i] @ a[j], a[i] @ a[j], p[i] @ p[j]]
            nearest_four = max(cosines, key=lambda s: s.item())
            if j != i and nearest_four.item() < math.cos(threshold):
                d = torch.sqrt(2 - 2 * nearest_four + 1e-5)
                d_neg = d if d_neg is None or d.item() < d_neg.item() else d_neg
        if d_neg is not None:
            admissible += 1
            violation = margin + euclidean(a[i], p[i], 1e-5) - d_neg
            holds = violation.item() >= 0
            total, active = total + (violation if holds else 0 * violation), active + holds
    return total / max(active if active_only else admissible, 1)


def tfeat(a: Tensor, p: Tensor, margin: float = 2.0) -> Tensor:
    total = torch.zeros((), dtype=a.dtype)
    for i in range(len(a)):
        n = p[i - 1]  # the row before; of the first row the last
        to_negative = min(plain(a[i], n), plain(p[i], n), key=lambda d: d.item())
        violation = margin + plain(a[i], p[i]) - to_negative
        total = total + (violation if violation.item() > 0 else 0 * violation)
    return total / len(a)


def l2net(a: Tensor, p: Tensor, raw: tuple[Tensor, Tensor], maps: list[tuple[Tensor, Tensor]]) -> Tensor:
    def softmax_term(score: list[list[Tensor]]) -> Tensor:
        total = torch.zeros((), dtype=a.dtype)
        n = len(score)
        for i in range(n):
            column = sum(torch.exp(score[k][i] - score[i][i]) for k in range(n))
            row = sum(torch.exp(score[i][k] - score[i][i]) for k in range(n))
            total = total + torch.log(column) + torch.log(row)
        return total / 2

    n = len(a)
    e1 = softmax_term([[2 - plain(a[i], p[j]) for j in range(n)] for i in range(n)])
    e2 = torch.zeros((), dtype=a.dtype)
    for side in raw:
        for i in range(side.shape[1]):
            for j in range(side.shape[1]):
                x, y = side[:, i] - side[:, i].mean(), side[:, j] - side[:, j].mean()
                if i != j:
                    e2 = e2 + ((x * y).sum() / torch.sqrt((x * x).sum() * (y * y).sum())) ** 2
    e2 = e2 / 2
    e3 = torch.zeros((), dtype=a.dtype)
    for left, right in maps:
        e3 = e3 + softmax_term([[(left[i] * right[j]).sum() for j in range(n)] for i in range(n)])
    return e1 + e2 + e3


class CDF:
    """The histogram goes on from batch to batch."""

    def __init__(self, bins: int = 512, decay: float = 0.99) -> None:
        self.bins, self.decay = bins, decay
        self.histogram: list[float] | None = None

    def __call__(self, a: Tensor, p: Tensor) -> Tensor:
        width = 4 / (self.bins - 1)
        rows = [(euclidean(a[i], p[i], 2e-6), nearest(a, p, i, "ap pa", 2e-6)) for i in range(len(a))]
        kept = [d_pos - d_neg for d_pos, d_neg in rows if d_neg is not None]
        if not kept:
            return torch.zeros((), dtype=a.dtype)
        votes = [0.0] * self.bins
        for x in kept:
            place = (x.item() + 2) / width
            low = math.floor(place)
            votes[low] += (low + 1 - place) / len(kept)
            votes[low + 1] += (place - low) / len(kept)
        if self.histogram is None:
            self.histogram = votes
        else:
            self.histogram = [self.decay * h + (1 - self.decay) * v for h, v in zip(self.histogram, votes, strict=True)]
        total = torch.zeros((), dtype=a.dtype)
        for x in kept:
            at = math.floor((x.item() + 2) / width)
            total = total + sum(self.histogram[: at + 1]) / sum(self.histogram) * x
        return total / len(a)


def sosnet(a: Tensor, p: Tensor, margin: float = 1.0, k: int = 8) -> Tensor:
    n = len(a)
    first = torch.zeros((), dtype=a.dtype)
    for i in range(n):
        d_neg = nearest(a, p, i, "ap pa aa pp", 1e-6)
        if d_neg is not None:
            violation = margin + euclidean(a[i], p[i], 1e-6) - d_neg
            first = first + (violation**2 if violation.item() > 0 else 0 * violation)
    second = torch.zeros((), dtype=a.dtype)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        near: set[int] = set()
        for x in (a, p):
            near |= set(sorted(others, key=lambda j: plain(x[i], x[j]).item())[:k])
        energy = sum((plain(a[i], a[j]) - plain(p[i], p[j])) ** 2 for j in sorted(near))
        second = second + torch.sqrt(energy)
    return first / n + second / n


def hynet(
    a: Tensor,
    p: Tensor,
    raw: tuple[Tensor, Tensor],
    margin: float = 1.2,
    alpha: float = 2.0,
    gamma: float = 0.1,
    z: float = 1.0,
) -> Tensor:
    def hybrid(d: Tensor) -> Tensor:
        return d + alpha * d * d / 2

    total = torch.zeros((), dtype=a.dtype)
    for i in range(len(a)):
        d_neg = nearest(a, p, i, "ap pa aa pp", 1e-6)
        if d_neg is not None:
            violation = margin + hybrid(euclidean(a[i], p[i], 1e-6)) - hybrid(d_neg)
            total = total + (violation / z if violation.item() > 0 else 0 * violation)
        total = total + gamma * (torch.sqrt((raw[0][i] ** 2).sum()) - torch.sqrt((raw[1][i] ** 2).sum())) ** 2
    return total


def orthogonality(a: Tensor, p: Tensor) -> Tensor:
    cosines = [a[i] @ p[i - 1] for i in range(len(a))]
    mean, square = sum(cosines) / len(a), sum(s * s for s in cosines) / len(a)
    excess = square - 1 / a.shape[1]
    return mean * mean + (excess if excess.item() > 0 else 0 * excess)
