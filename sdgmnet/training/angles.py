"""The angles at the end of a run: the data of Fig. 2, and figures to compare with the authors' logs."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from sdgmnet.data.sampler import PairSampler
from sdgmnet.distributed import ALONE, World
from sdgmnet.encoders import Encoder
from sdgmnet.errors import InputError
from sdgmnet.loss import SDGMLoss
from sdgmnet.loss.mining import hardest_in_batch
from sdgmnet.loss.orthogonal import WithOrthogonality
from sdgmnet.loss.statistics import batch_moments
from sdgmnet.loss.weights import coupled_weight
from sdgmnet.metrics import skewness
from sdgmnet.storage import new_file, read_arrays
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.step import draw_batch, encode_sides

BATCHES = 8
FEW = 0.1  # share of triplets
ENOUGH_TO_LEARN = 100  # iterations: with right labels, most points are then nearer to themselves than to others


@dataclass(frozen=True, eq=False)
class Angles:
    theta_pos: np.ndarray  # (M,) radians
    theta_neg: np.ndarray  # (M,) radians
    moments: np.ndarray  # (3, 2): running mean and std of θ⁺, θ⁻, θʳ

    def save(self, path: Path) -> None:
        with new_file(path) as part, open(part, "wb") as stream:
            np.savez(stream, theta_pos=self.theta_pos, theta_neg=self.theta_neg, moments=self.moments)

    @staticmethod
    def load(path: Path | str) -> "Angles":
        try:
            content = read_arrays(path, ["theta_pos", "theta_neg", "moments"])
        except InputError as error:
            raise InputError(f"{path} does not hold the angles of a finished run ({error}).") from error
        found = Angles(**content)
        fits = (
            found.theta_pos.ndim == 1
            and found.theta_pos.shape == found.theta_neg.shape
            and found.moments.shape == (3, 2)
        )
        if not fits or not all(one.dtype.kind == "f" and np.isfinite(one).all() for one in content.values()):
            raise InputError(f"{path} does not hold the angles of a finished run.")
        return found

    def summary(self, config: TrainConfig) -> dict[str, Any]:
        """Moments and skewness of the angles, and the share of triplets beyond the margin; empty for fewer than two."""
        if len(self.theta_pos) < 2:
            return {}
        return {
            "theta_pos": [float(self.theta_pos.mean()), float(self.theta_pos.std(ddof=1))],
            "theta_neg": [float(self.theta_neg.mean()), float(self.theta_neg.std(ddof=1))],
            "skewness_theta_pos": skewness(self.theta_pos),
            "active_share": self.active_share(config.sdgm_setting("margin")),
        }

    def concern(self, batch_size: int, iterations: int) -> str | None:
        """A warning if the data has little to learn from, which training does not notice otherwise."""
        admitted = len(self.theta_pos) / (BATCHES * batch_size)
        if admitted < FEW:
            return (
                f"{1 - admitted:.0%} of the points have no negative, because patches of other points look almost the same: are "
                "all patches alike? Little can be learned from them."
            )
        confused = float((self.theta_pos >= self.theta_neg).mean())
        if confused > 0.5 and iterations >= ENOUGH_TO_LEARN:
            return (
                f"for {confused:.0%} of the points, a patch of another point is nearer than their own: the descriptor hardly "
                "distinguishes points. Are the labels right? Does training need more iterations?"
            )
        return None

    def active_share(self, margin: float) -> float:
        """Share of triplets with θʳ > iCDF_t(m)."""
        mean, std = torch.from_numpy(self.moments[2])
        theta_rel = torch.from_numpy(self.theta_pos - self.theta_neg).double()
        return float((coupled_weight(theta_rel, mean, std, margin) > 0).double().mean())


@torch.no_grad()
def measure_angles(
    encoder: Encoder, sampler: PairSampler, loss: nn.Module, config: TrainConfig, world: World = ALONE
) -> Angles:
    """θ⁺ and θ⁻ of the next batches as training would see them (dropout, BatchNorm of the batch). The run is unchanged."""
    encoder = copy.deepcopy(encoder).train()
    positive_angles, negative_angles = [], []
    for step in range(config.iterations, config.iterations + BATCHES):
        sides, keep = draw_batch(encoder, sampler, config, step, world)
        anchor, positive = encode_sides(encoder, sides, keep, config.chunk, config.joint_batchnorm, world=world)
        descriptors = (F.normalize(one.descriptors, dim=1) for one in (anchor, positive))  # TFeat's are of any length
        triplets = hardest_in_batch(*descriptors, config.loss_setting("min_negative_angle"))
        positive_angles.append(triplets.theta_pos[triplets.admissible])
        negative_angles.append(triplets.theta_neg[triplets.admissible])
    pos, neg = torch.cat(positive_angles), torch.cat(negative_angles)
    everything = torch.ones_like(pos, dtype=torch.bool)
    loss = loss.loss if isinstance(loss, WithOrthogonality) else loss
    running = loss.statistics.moments if isinstance(loss, SDGMLoss) else batch_moments(pos, neg, everything)
    return Angles(pos.cpu().numpy(), neg.cpu().numpy(), running.cpu().numpy().copy())
