"""Comparisons of distances by matrix products in double precision: what native.distances does faster, where it is not built."""

import numpy as np
import torch

PAIRS = 8192  # whose descriptors are gathered at once
BLOCK = 1024  # rows of a matrix of distances
TIE = 1e-12  # of the squared lengths: nearer squared distances than the product can tell are equal


def pair_distances(rows: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(P,) float32 between rows[first] and rows[second]; differences are rounded to float32 first."""
    every, distances = torch.from_numpy(rows), torch.empty(len(first))
    for start in range(0, len(first), PAIRS):
        part = slice(start, start + PAIRS)
        difference = every[torch.from_numpy(first[part])] - every[torch.from_numpy(second[part])]
        distances[part] = difference.double().square_().sum(1).sqrt_().float()
    return distances.numpy()


def first_nearest(descriptors: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the nearest of `others`, the first of equally near ones, and its distance."""
    b = torch.from_numpy(others).double()
    lengths, found = b.square().sum(1), []
    for rows in torch.from_numpy(descriptors).split(BLOCK):
        a = rows.double()
        shifted = torch.addmm(lengths, a, b.T, alpha=-2)  # less the own squared length, the same along a row
        smallest, where = shifted.min(dim=1)
        slack = TIE * (a.square().sum(1) + lengths[where])
        same = shifted <= (smallest + slack)[:, None]
        found.append(same.to(torch.uint8).argmax(dim=1))
    nearest = torch.cat(found).numpy()
    return nearest, np.linalg.norm(descriptors.astype(np.float64) - others[nearest], axis=1)


def distances(queries: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(Q, K) between each query (Q, D) and others of its own (Q, K, D)."""
    return np.linalg.norm(others.astype(np.float64) - queries[:, None], axis=2)


def count_closer(queries: np.ndarray, others: np.ndarray, near: np.ndarray, ends: list[int]) -> np.ndarray:
    """How many of `others` are nearer to each query than each of its `near` (Q, T): (Q, T, parts), parts ending at `ends`."""
    q, b = torch.from_numpy(queries).double(), torch.from_numpy(others).double()
    lengths = q.square().sum(1)
    far = torch.addmm(b.square().sum(1), q, b.T, alpha=-2).add_(lengths[:, None]).numpy()
    limits = near**2 - TIE * (lengths.numpy()[:, None] + near**2)
    counts = np.zeros((*near.shape, len(ends)), dtype=np.int64)
    for column in range(near.shape[1]):
        below = far < limits[:, column : column + 1]
        for part, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            counts[:, column, part] = np.count_nonzero(below[:, start:end], axis=1)
    return counts
