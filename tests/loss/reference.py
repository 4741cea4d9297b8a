"""The SDGMNet loss written a second time, from the paper alone, as the judge of `sdgmnet.SDGMLoss`.

Plain loops in float64 and no automatic differentiation, so that it can be checked line by line with the paper in hand.
Equation numbers and "Algorithm 1" are those of the paper. What the paper leaves open is marked "agreement".
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

STANDARD_NORMAL = NormalDist()
COINCIDING = math.acos(1 - 1e-5)  # the published code's threshold early in training


def angle(x: np.ndarray, y: np.ndarray) -> float:
    """Eq. (3): the included angle of two descriptors before normalisation."""
    cosine = float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))
    return math.acos(min(1.0, max(-1.0, cosine)))


def angle_gradient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Derivative of Eq. (3) with respect to x.

    With unit vectors u = x/|x|, v = y/|y| and s = cos(theta) = u v:
        d(theta) = -ds / sin(theta)          (derivative of acos)
        ds/dx    = (v - s u) / |x|           (u turns only across x)
    so d(theta)/dx = (s u - v) / (|x| sin(theta)): orthogonal to x and of length 1/|x|, which is Eq. (5).
    """
    norm = math.sqrt(float(x @ x))
    u, v = x / norm, y / math.sqrt(float(y @ y))
    theta = angle(x, y)
    return (math.cos(theta) * u - v) / (norm * math.sin(theta))


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased standard deviation (agreement: N - 1)."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


class SDGMReference:
    """State and one step of Algorithm 1, up to and including the gradient of the pseudo loss.

    After a step `report` holds what `SDGMLoss.report` should hold, `scale` the sum of the absolute values of both terms
    of the loss (to judge differences), `removed` how many (row, class) negatives the anti-noise threshold removed, and
    `gap` the smallest distance in radians of any decision (threshold, nearest, margin) from falling the other way.
    """

    def __init__(
        self,
        *,
        margin: float = 0.6,
        alpha: float = 0.9,
        decay: float = 0.999,
        warmup: float = 0.1,
        initial_power: float | None = None,
        min_negative_angle: float = 0.6,
        self_weight: str = "auto-focus",
        coupled_weight: str = "cdf",
        power_adjustment: bool = True,
    ) -> None:
        self.margin = margin
        self.alpha = alpha
        self.decay = decay
        self.warmup = warmup
        self.initial_power = initial_power
        self.min_negative_angle = min_negative_angle
        self.self_weight = self_weight
        self.coupled_weight = coupled_weight
        self.power_adjustment = power_adjustment
        self.statistics: dict[str, float] = {}  # beta of Eq. (14), the six of the angles; empty before the first batch
        self.powers: tuple[float, float] | None = None  # E_t[P+], E_t[P-] of Eq. (13)
        self.report: dict[str, float] = {}
        self.scale = 0.0
        self.removed = 0
        self.gap = math.inf

    def step(self, x: np.ndarray, y: np.ndarray, progress: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss and gradients for N matching pairs (x_i, y_i), each the only pair of its class.

        As classes of two, the nearest sample of class j to either end of pair i is the nearest of the four pairs
        (x_i, x_j), (x_i, y_j), (y_i, x_j), (y_i, y_j): the four-way maximum of the cosine.
        """
        n = len(x)
        value, gradient = self.step_labels(np.concatenate([x, y]), list(range(n)) * 2, progress)
        return value, gradient[:n], gradient[n:]

    def step_labels(self, x: np.ndarray, labels: Sequence[int], progress: float) -> tuple[float, np.ndarray]:
        """Loss and gradient for labelled samples; every pair of samples with one label is a row."""
        x = np.asarray(x, dtype=np.float64)
        labels = [int(label) for label in labels]
        count = len(x)
        gradient = np.zeros_like(x)
        self.scale, self.removed, self.gap = 0.0, 0, math.inf

        # "Compute the angular distance matrix", Eq. (3).
        theta = [[0.0] * count for _ in range(count)]
        for i in range(count):
            for j in range(i + 1, count):
                theta[i][j] = theta[j][i] = angle(x[i], x[j])

        # "Obtain HardNet triplets": a row is (anchor, positive), its negative pair (end of the row, negative).
        rows = [(i, j) for i in range(count) for j in range(i + 1, count) if labels[i] == labels[j]]
        negatives = [self._nearest_negative(row, labels, theta, self.min_negative_angle) for row in rows]
        n = len(rows)
        missing = negatives.count(None)
        collapsed = 2 * missing > n and self.min_negative_angle > COINCIDING
        if collapsed:  # agreement: most rows have no negative, so take the nearest that does not coincide
            negatives = [self._nearest_negative(row, labels, theta, COINCIDING) for row in rows]
        kept = [r for r in range(n) if negatives[r] is not None]  # agreement: rows without a negative weigh 0
        if not kept:  # agreement: nothing to learn from, nothing to update
            self.report = {"active_share": 0.0, "no_negative_share": 1.0}
            return 0.0, gradient
        pairs_pos = [rows[r] for r in kept]
        pairs_neg = [negatives[r] for r in kept]
        theta_pos = [theta[i][j] for i, j in pairs_pos]
        theta_neg = [theta[i][j] for i, j in pairs_neg]
        theta_rel = [pos - neg for pos, neg in zip(theta_pos, theta_neg, strict=True)]  # theta^r, Section III-C

        # "Compute statistics mu_t in batch, except for the expectation of powers" and "update ... by Eqn. (14)".
        batch: dict[str, float] = {}
        batch["theta_pos_mean"], batch["theta_pos_std"] = mean_and_std(theta_pos)
        batch["theta_neg_mean"], batch["theta_neg_std"] = mean_and_std(theta_neg)
        batch["theta_rel_mean"], batch["theta_rel_std"] = mean_and_std(theta_rel)
        if collapsed:  # agreement: such a batch counts as warming, and stays out of these six
            pass
        elif not self.statistics:  # agreement: all six start as the first batch's values
            self.statistics = dict(batch)
        else:
            self.statistics = {name: self._update(old, batch[name]) for name, old in self.statistics.items()}

        # "Compute w_s and w_c", and "if warming set [them] to 1".
        if progress < self.warmup or collapsed:
            self_pos = self_neg = coupled = [1.0] * len(kept)
        else:
            self_pos = [self._self_weight(value, "theta_pos") for value in theta_pos]
            self_neg = [self._self_weight(value, "theta_neg") for value in theta_neg]
            coupled = [self._coupled_weight(value) for value in theta_rel]
        weight_pos = [s * c for s, c in zip(self_pos, coupled, strict=True)]  # w = w_s w_c, below Eq. (8)
        weight_neg = [s * c for s, c in zip(self_neg, coupled, strict=True)]

        # "Compute powers by Eqn. (12)", "update the expectation of powers by Eqn. (14)".
        power_pos, power_neg = sum(weight_pos), sum(weight_neg)
        if self.powers is None:
            start = n * 10000 / 1024 if self.initial_power is None else self.initial_power  # agreement
            self.powers = (start, start)
        self.powers = (self._update(self.powers[0], power_pos), self._update(self.powers[1], power_neg))

        # The two factors of Eqs. (13) and (15); agreement: without power adjustment both are the mean over rows.
        if self.power_adjustment:
            factor_pos, factor_neg = self.alpha / self.powers[0], 1.0 / self.powers[1]
        else:
            factor_pos, factor_neg = 1.0 / n, 1.0 / n

        # "Construct pseudo loss by Eqn. (15)".
        sum_pos = sum(w * t for w, t in zip(weight_pos, theta_pos, strict=True))
        sum_neg = sum(w * t for w, t in zip(weight_neg, theta_neg, strict=True))
        value = factor_pos * sum_pos - factor_neg * sum_neg
        self.scale = factor_pos * sum_pos + factor_neg * sum_neg

        # "Call back propagation of pseudo loss": Eq. (13), each angle moving both of its ends as in Eq. (2).
        for (i, j), weight in zip(pairs_pos, weight_pos, strict=True):
            gradient[i] += factor_pos * weight * angle_gradient(x[i], x[j])
            gradient[j] += factor_pos * weight * angle_gradient(x[j], x[i])
        for (i, j), weight in zip(pairs_neg, weight_neg, strict=True):
            gradient[i] -= factor_neg * weight * angle_gradient(x[i], x[j])
            gradient[j] -= factor_neg * weight * angle_gradient(x[j], x[i])

        self.report = batch | {
            "power_pos": power_pos,
            "power_neg": power_neg,
            "active_share": sum(c > 0 for c in coupled) / n,
            "no_negative_share": missing / n,
        }
        return value, gradient

    def _nearest_negative(
        self, row: tuple[int, int], labels: Sequence[int], theta: list[list[float]], threshold: float
    ) -> tuple[int, int] | None:
        """The nearest sample of another class to either end of the row, as (end, sample), or None.

        "We ... employ the anti-noise threshold ... 0.6" (Section III-E); agreement: a class with any sample at or below
        the threshold from either end is removed as a whole.
        """
        classes: dict[int, list[tuple[int, int]]] = {}
        for sample, label in enumerate(labels):
            if label != labels[row[0]]:
                classes.setdefault(label, []).extend((end, sample) for end in row)
        candidates: list[tuple[float, int, int]] = []
        for pairs in classes.values():
            nearest = min(theta[end][sample] for end, sample in pairs)
            self.gap = min(self.gap, abs(nearest - threshold))
            if nearest <= threshold:
                self.removed += 1
            else:
                candidates.extend((theta[end][sample], end, sample) for end, sample in pairs)
        if not candidates:
            return None
        candidates.sort()
        if len(candidates) > 1:
            self.gap = min(self.gap, candidates[1][0] - candidates[0][0])
        return candidates[0][1:]

    def _update(self, old: float, new: float) -> float:
        """Eq. (14), with 0.999 as `decay`."""
        return self.decay * old + (1 - self.decay) * new

    def _self_weight(self, theta: float, name: str) -> float:
        """w_s of one pair: Eqs. (9) and (10), or in the ablation Eqs. (5), (6), (7) without the term 1/|x|."""
        if self.self_weight == "auto-focus":
            mean, std = self.statistics[f"{name}_mean"], self.statistics[f"{name}_std"]
            return math.exp(-((theta - mean) ** 2) / (2 * (math.pi / 6 + std) ** 2))
        if self.self_weight == "angle":
            return 1.0
        if self.self_weight == "cosine":
            return math.sqrt(1 - math.cos(theta) ** 2)
        if self.self_weight == "l2":
            length = math.sqrt(2 - 2 * math.cos(theta))  # l of Eq. (4) for unit descriptors at angle theta
            return math.sqrt(4 * length**2 - length**4) / (2 * length)
        raise KeyError(self.self_weight)

    def _coupled_weight(self, theta_rel: float) -> float:
        """w_c of one triplet: Eq. (11) with a normal distribution; "step" is the published code's variant."""
        mean, std = self.statistics["theta_rel_mean"], self.statistics["theta_rel_std"]
        boundary = mean + std * STANDARD_NORMAL.inv_cdf(self.margin)  # iCDF_t(m)
        self.gap = min(self.gap, abs(theta_rel - boundary))
        if self.coupled_weight == "cdf":
            return STANDARD_NORMAL.cdf((theta_rel - mean) / std) if theta_rel > boundary else 0.0
        if self.coupled_weight == "step":
            return 1.0 if theta_rel >= boundary else 0.0
        raise KeyError(self.coupled_weight)
