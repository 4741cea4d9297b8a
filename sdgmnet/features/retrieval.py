"""Images of a collection that look alike: the nearest neighbours of each by VLAD, an aggregate of its local descriptors.

    descriptors of a sample -> words (k-means) -> a vector per image -> nearest neighbours -> most similar pairs

The words are learnt from the collection itself, so any descriptor can be used. Each image is read at most twice; in memory
there are three vectors of 128 D numbers per image. The same descriptors and seed give the same pairs
(docs/decisions/pairs-by-retrieval.md).
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.match import as_floats
from sdgmnet.features.pairs import Pair
from sdgmnet.report import OnProgress, no_progress, track

WORDS = 128
ITERATIONS = 10  # of k-means
ROWS_PER_WORD = 4  # at least: a descriptor that is a word itself has no difference to it
SAMPLED_IMAGES, SAMPLED_ROWS = 512, 128  # images that the words are learnt from, and descriptors of each

DescriptorsOf = Callable[[str], np.ndarray]  # name of an image -> (N, D)


def require_faiss() -> Any:
    """The module faiss, on one thread: sums over several may round differently."""
    try:
        import faiss
    except ImportError:
        raise InputError(
            "--pairs retrieval needs faiss: pip install 'sdgmnet[sfm]', or give --pairs exhaustive or sequential."
        ) from None
    faiss.omp_set_num_threads(1)
    return faiss


def retrieve_pairs(
    names: Sequence[str],
    descriptors_of: DescriptorsOf,
    neighbours: int,
    *,
    seed: int = 0,
    on_progress: OnProgress = no_progress,
) -> list[Pair]:
    """The most similar pairs, as many as give each image `neighbours` on average, in the order of names (`similar_pairs`).

    Images without keypoints are in no pair.
    """
    require_faiss()
    words = learn_words(names, descriptors_of, seed)
    if words is None:
        return []
    vectors = np.empty((len(names), words.size), dtype=np.float32)
    for row, name in zip(vectors, track(names, "retrieving", on_progress), strict=True):
        row[:] = aggregate(descriptors_of(name), words, name)
    return [(names[one], names[two]) for one, two in similar_pairs(vectors, neighbours)]


def learn_words(names: Sequence[str], descriptors_of: DescriptorsOf, seed: int) -> np.ndarray | None:
    """Centres (K, D) of the descriptors of a sample of images, K = 128 or fewer; None if there are no descriptors."""
    generator, sample = np.random.default_rng(seed), []
    chosen = np.unique(np.linspace(0, len(names) - 1, min(len(names), SAMPLED_IMAGES)).round().astype(np.int64))
    for number in chosen:
        rows = unit_rows(descriptors_of(names[number]))
        if len(rows) > SAMPLED_ROWS:
            rows = rows[np.sort(generator.choice(len(rows), SAMPLED_ROWS, replace=False))]
        sample += [rows] * bool(len(rows))
    if not sample:
        return None
    if len({rows.shape[1] for rows in sample}) > 1:
        raise InputError("the images have descriptors of different lengths: describe them by one descriptor.")
    rows = np.concatenate(sample)
    count = min(WORDS, -(-len(rows) // ROWS_PER_WORD))
    clustering = require_faiss().Kmeans(
        rows.shape[1],
        count,
        niter=ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=-(-len(rows) // count),
    )
    clustering.train(rows)
    return np.asarray(clustering.centroids)


def aggregate(descriptors: np.ndarray, words: np.ndarray, name: str = "") -> np.ndarray:
    """VLAD (K D,) of unit length, or 0: per word the sum of the differences of its descriptors to it, of unit length."""
    rows = unit_rows(descriptors)
    sums = np.zeros_like(words)
    if len(rows):
        if rows.shape[1] != words.shape[1]:
            raise InputError(f"{name} has descriptors of length {rows.shape[1]}, other images of {words.shape[1]}.")
        nearest = (rows @ words.T - np.square(words).sum(axis=1) / 2).argmax(axis=1)
        order = np.argsort(nearest, kind="stable")
        used, first = np.unique(nearest[order], return_index=True)
        sums[used] = np.add.reduceat(rows[order] - words[nearest[order]], first)
    return unit_rows(unit_rows(sums).reshape(1, -1))[0]


def similar_pairs(vectors: np.ndarray, neighbours: int) -> list[tuple[int, int]]:
    """Sorted pairs of rows: each with the nearer half of its neighbours, then the most similar pairs, until each is in
    `neighbours` pairs on average.

    Only the 2 x `neighbours` nearest of a row can be in a pair with it. Rows of zeros are in no pair. Equal rows (copies of an
    image) count as one: each is paired with the first of them and its neighbours.
    """
    first_equal: dict[bytes, int] = {}
    original = [first_equal.setdefault(sha256(row).digest(), number) for number, row in enumerate(vectors)]
    distinct = np.array([number for number in sorted(set(original)) if vectors[number].any()], dtype=np.int64)
    if not len(distinct):
        return []
    centred = vectors[distinct]
    centred -= centred.mean(axis=0)  # what all images have in common does not distinguish them
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    chosen = choose_pairs(*nearest(centred, 2 * neighbours), neighbours)
    near: dict[int, list[int]] = {number: [] for number in distinct.tolist()}
    for one, two in distinct[chosen].tolist():
        near[one].append(two)
        near[two].append(one)
    pairs = set()
    for number, source in enumerate(original):
        others = near.get(source, []) + [source] * (number != source and source in near)
        pairs |= {(min(number, other), max(number, other)) for other in others}
    return sorted(pairs)


def nearest(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and inner products (N, count) of the rows nearest to each, without itself; count = N - 1 if there are fewer."""
    index = require_faiss().IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    products, found = index.search(vectors, min(count + 1, len(vectors)))
    others = found != np.arange(len(vectors))[:, None]
    others[others.all(axis=1), -1] = False  # others are as near as the row itself, which was not found
    shape = len(vectors), found.shape[1] - 1
    return found[others].reshape(shape), products[others].reshape(shape)


def choose_pairs(found: np.ndarray, products: np.ndarray, neighbours: int) -> np.ndarray:
    """(P, 2): of each row the first `neighbours` / 2 found; then the largest products, up to N `neighbours` / 2 pairs."""
    rows = np.broadcast_to(np.arange(len(found))[:, None], found.shape)
    both = np.sort(np.stack([rows, found], axis=-1).reshape(-1, 2), axis=1)
    is_near = np.broadcast_to(np.arange(found.shape[1]) < (neighbours + 1) // 2, found.shape).reshape(-1)
    order = np.lexsort((both[:, 1], both[:, 0], -products.reshape(-1), ~is_near))
    _, first = np.unique(both[order], axis=0, return_index=True)
    first = np.sort(first)
    count = max(np.count_nonzero(is_near[order[first]]), len(found) * neighbours // 2)
    return both[order[first[:count]]]


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """(N, D) float32, of unit length; rows of zeros stay."""
    floats = as_floats(rows)
    return floats / np.maximum(np.linalg.norm(floats, axis=1, keepdims=True), np.finfo(np.float32).tiny)
