"""SDGMNet's loss: Algorithm 1 of the paper on one screen."""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sdgmnet.distributed import Group, across_ranks, gather_labelled
from sdgmnet.loss.checks import require, require_numbers, require_progress
from sdgmnet.loss.mining import COINCIDING, Triplets, hardest_by_label, hardest_in_batch, mine
from sdgmnet.loss.statistics import RunningStatistics, batch_moments
from sdgmnet.loss.weights import COUPLED_WEIGHTS, SELF_WEIGHTS, coupled_weight

PAPER_POWER_PER_PAIR = 10000 / 1024  # the paper's initial power at its batch size


class SDGMReport(NamedTuple):
    """Statistics of the last batch: detached scalars, angles in radians."""

    theta_pos_mean: Tensor
    theta_pos_std: Tensor
    theta_neg_mean: Tensor
    theta_neg_std: Tensor
    theta_rel_mean: Tensor
    theta_rel_std: Tensor
    power_pos: Tensor
    power_neg: Tensor
    active_share: Tensor  # rows with w_c > 0
    no_negative_share: Tensor  # rows whose every negative lies within the anti-noise threshold


class SDGMLoss(nn.Module):
    r"""Statistic-based dynamic gradient modulation for matching pairs of unit descriptors.

    The running statistics and powers are state: **save this module's** ``state_dict`` **with the model's**, or a resumed
    training starts with new statistics.

    The value is the pseudo loss of Eq. (15), whose gradient is Eq. (13); the value itself has no meaning.

    .. math:: L_P = \frac{\alpha}{E_t[P^+]} \sum_i w_i^+ \theta_i^+ - \frac{1}{E_t[P^-]} \sum_i w_i^- \theta_i^-

    In ``eval()`` mode the statistics are used but not updated.

    A batch in which most pairs have no negative beyond `min_negative_angle`, as of a fresh encoder whose descriptors are all
    near each other, is collapsed: its negatives are the nearest that do not coincide, its weights are 1, it does not enter
    the running means and stds, and the first one gives a warning.

    Args:
        margin: m of Eq. (11), the share of easiest triplets that get weight 0.
        alpha: attenuation of the positive power, Eq. (13).
        decay: 0.999 of Eq. (14).
        warmup: all weights are 1 while ``progress < warmup``.
        initial_power: E₀[P⁺] = E₀[P⁻]; None: 10000/1024 per pair, the paper's 10000 at its batch of 1024.
        min_negative_angle: anti-noise threshold in radians: nearer negatives are ignored.
        threshold_start: share of training before which only coinciding negatives are ignored; 0.125 in the published code.
        self_weight: "auto-focus" (Eqs. 9-10), or the ablations "angle", "cosine", "l2" (Eqs. 5-7).
        coupled_weight: "cdf" (Eq. 11), or the published code's "step".
        power_adjustment: False divides both sums by their number of terms, with alpha = 1.
        group: "world" or a process group, for DistributedDataParallel: negatives, statistics and powers are those of the
            pairs of all ranks, see `across_ranks`. None: those of this process.

    Shape:
        anchor, positive (N, D), N >= 2, rows of unit length, row i of both from the same point -> scalar.

    Example:
        >>> loss = SDGMLoss()
        >>> anchor = torch.nn.functional.normalize(torch.randn(8, 128), dim=1).requires_grad_()
        >>> positive = torch.nn.functional.normalize(torch.randn(8, 128), dim=1)
        >>> loss(anchor, positive, progress=0.0).backward()
        >>> anchor.grad.shape
        torch.Size([8, 128])
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
        threshold_start: float = 0.0,
        self_weight: str = "auto-focus",
        coupled_weight: str = "cdf",
        power_adjustment: bool = True,
        group: Group | None = None,
    ) -> None:
        super().__init__()
        require_modulation(self, alpha, decay, warmup, initial_power, min_negative_angle)
        require_numbers(self, margin=margin, threshold_start=threshold_start)
        require(self, 0 <= margin < 1, "margin must lie in [0, 1)", margin)
        require(self, 0 <= threshold_start <= 1, "threshold_start must lie in [0, 1]", threshold_start)
        for name, value, known in (
            ("self_weight", self_weight, SELF_WEIGHTS),
            ("coupled_weight", coupled_weight, COUPLED_WEIGHTS),
        ):
            require(self, value in known, f"{name} must be one of {', '.join(known)}", value)
        self.margin, self.warmup = margin, warmup
        self.alpha = alpha if power_adjustment else 1.0
        self.initial_power = initial_power
        self.min_negative_angle, self.threshold_start = min_negative_angle, threshold_start
        self.self_weight, self.coupled_weight = self_weight, coupled_weight
        self.power_adjustment = power_adjustment
        self.statistics = RunningStatistics(decay)
        self.report: SDGMReport | None = None
        self.group = group
        if group is not None:
            across_ranks(self, group)

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        """progress is the share of training done, in [0, 1]: it decides only whether the loss is still warming up."""
        require_progress(progress)
        triplets = mine(self, partial(hardest_in_batch, anchor, positive), self.threshold(progress))
        w_pos, w_neg = self.modulate(triplets, progress)  # no gradient: statistics, weights, powers
        return pseudo_loss(triplets, w_pos, w_neg, self.alpha)

    def from_labels(self, embeddings: Tensor, labels: Tensor, *, progress: float = 1.0) -> Tensor:
        """The same for labelled embeddings (M, D), labels (M,): every pair with one label is a row, see `hardest_by_label`.

        Equal to ``loss(anchor, positive)`` where each label occurs twice; 0, with gradient 0, where none does.
        """
        require_progress(progress)
        embeddings, labels = gather_labelled(self.group, embeddings, labels)
        triplets = mine(self, partial(hardest_by_label, embeddings, labels), self.threshold(progress))
        w_pos, w_neg = self.modulate(triplets, progress)  # no gradient: statistics, weights, powers
        return pseudo_loss(triplets, w_pos, w_neg, self.alpha)

    def threshold(self, progress: float) -> float:
        """The anti-noise threshold in radians at this point of training."""
        return self.min_negative_angle if progress >= self.threshold_start else COINCIDING

    @torch.no_grad()
    def modulate(self, triplets: Triplets, progress: float) -> tuple[Tensor, Tensor]:
        """Algorithm 1 between mining and pseudo loss: statistics, weights, powers. Returns weights over powers."""
        theta_pos, theta_neg, usable = triplets.theta_pos.detach(), triplets.theta_neg.detach(), triplets.usable
        statistics = self.statistics
        batch = batch_moments(theta_pos, theta_neg, usable)
        if self.training and not triplets.collapsed:
            statistics.update_moments(batch, usable=usable.sum() >= 2)

        (mean_pos, std_pos), (mean_neg, std_neg), (mean_rel, std_rel) = statistics.moments.to(theta_pos.dtype)
        self_weight = SELF_WEIGHTS[self.self_weight]
        w_self_pos = self_weight(theta_pos, mean_pos, std_pos)
        w_self_neg = self_weight(theta_neg, mean_neg, std_neg)
        w_coupled = coupled_weight(theta_pos - theta_neg, mean_rel, std_rel, self.margin, self.coupled_weight)
        if progress < self.warmup or triplets.collapsed or not statistics.started:
            w_self_pos = w_self_neg = w_coupled = torch.ones_like(theta_pos)
        w_coupled = w_coupled * usable  # a row without a negative has weight 0
        w_pos, w_neg = w_self_pos * w_coupled, w_self_neg * w_coupled

        powers = torch.stack([w_pos.double().sum(), w_neg.double().sum()])
        rows = len(theta_pos)
        initial_power = PAPER_POWER_PER_PAIR * rows if self.initial_power is None else self.initial_power
        if self.training:
            statistics.update_powers(powers, initial_power, usable=usable.any())
        counts = torch.stack([(w_coupled > 0).sum(), triplets.admissible.logical_not().sum()])
        shares = counts.double() / max(rows, 1)
        self.report = SDGMReport(*torch.cat([batch.flatten(), powers, shares]).unbind())

        if not self.power_adjustment:
            return w_pos / rows, w_neg / rows
        expected = torch.where(statistics.steps[1] > 0, statistics.powers, initial_power).to(theta_pos.dtype)
        return w_pos / expected[0], w_neg / expected[1]

    def running(self) -> dict[str, float]:
        """The running statistics of Eq. (14) by name, for logging."""
        moments, powers = self.statistics.moments.flatten().tolist(), self.statistics.powers.tolist()
        return dict(zip(SDGMReport._fields, [*moments, *powers], strict=False))


def pseudo_loss(triplets: Triplets, w_pos: Tensor, w_neg: Tensor, alpha: float) -> Tensor:
    """Eq. (15): angles times constant weights, which are already divided by the running powers."""
    return alpha * (w_pos * triplets.theta_pos).sum() - (w_neg * triplets.theta_neg).sum()


def require_modulation(
    loss: nn.Module, alpha: float, decay: float, warmup: float, initial_power: float | None, min_negative_angle: float
) -> None:
    """Check the options of every loss with running powers."""
    require_numbers(loss, alpha=alpha, decay=decay, warmup=warmup, min_negative_angle=min_negative_angle)
    if initial_power is not None:
        require_numbers(loss, initial_power=initial_power)
    require(loss, 0 < alpha < math.inf, "alpha must be positive", alpha)
    require(loss, 0 <= decay < 1, "decay must lie in [0, 1)", decay)
    require(loss, 0 <= warmup <= 1, "warmup must be a share of training in [0, 1]", warmup)
    positive = initial_power is None or 0 < initial_power < math.inf
    require(loss, positive, "initial_power must be positive", initial_power)
    radians = 0 <= min_negative_angle < math.pi
    require(loss, radians, "min_negative_angle must lie in [0, pi) radians", min_negative_angle)
