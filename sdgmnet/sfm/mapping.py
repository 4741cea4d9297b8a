"""Matches in COLMAP's database -> verified pairs -> sparse models: COLMAP's own steps, each in a process of its own.

Both give the same for the same database: every random choice has a seed, and mapping, whose sums depend on its threads, runs
on one.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdgmnet.sfm import database as tables
from sdgmnet.sfm.scene import save_scene
from sdgmnet.sfm.sparse import Step, alone, mapping_options, read_scene
from sdgmnet.storage import new_folder, require_room_left

BATCH = 64  # pairs between two writings: what a kill may cost
POINTS = "points.ply"  # of the largest model, beside the models

Tell = Callable[[int, int], None]  # done, of how many


def verify(path: Path, log: Path, *, seed: int, threads: int, tell: Tell) -> Step:
    """Two-view geometry of every pair that has none yet, by COLMAP's defaults; pairs that are there are kept."""
    with tables.opened(path) as database:
        total = tables.count_matched(database)

    def watch() -> None:
        with tables.opened(path) as database:
            tell(min(tables.count_judged(database), total), total)

    step = alone(f"{__name__}:_verify", log, watch=watch, path=str(path), seed=seed, threads=threads)
    tell(total, total)
    return step


def _verify(path: str, seed: int, threads: int) -> None:
    import pycolmap

    verifier, geometry = pycolmap.GeometricVerifierOptions(), pycolmap.TwoViewGeometryOptions()
    verifier.num_threads, geometry.ransac.random_seed = threads, seed
    pairing = pycolmap.ExistingMatchedPairingOptions()
    pairing.batch_size = BATCH
    pycolmap.geometric_verification(path, verifier, pairing, geometry)


def map_photos(
    path: Path, images: Path, target: Path, scene: Path, log: Path, *, count: int, smallest: int, seed: int, tell: Tell
) -> Step:
    """Models of at least `smallest` photos in target/0, 1, ..., the largest first, in binary and text; their figures, none
    where there is no model.

    The largest one's points are in target/points.ply, its cameras and tracks, lens distortion left out, in the file `scene`.
    `count` photos are there.
    """
    heartbeat = target.with_name(f".{target.name}.registered")

    def watch() -> None:
        tell(min(heartbeat.stat().st_size if heartbeat.exists() else 0, count), count)

    heartbeat.unlink(missing_ok=True)
    try:
        return alone(
            f"{__name__}:_map",
            log,
            watch=watch,
            path=str(path),
            images=str(images),
            target=str(target),
            scene=str(scene),
            heartbeat=str(heartbeat),
            smallest=smallest,
            seed=seed,
        )
    finally:
        heartbeat.unlink(missing_ok=True)


def _map(
    path: str, images: str, target: str, scene: str, heartbeat: str, smallest: int, seed: int
) -> list[dict[str, Any]]:
    import pycolmap

    def registered(photos: int) -> None:
        with open(heartbeat, "ab") as file:
            file.write(b"." * photos)

    shutil.rmtree(target, ignore_errors=True)
    with new_folder(target) as part:
        unsorted = part / "unsorted"
        unsorted.mkdir()
        found = pycolmap.incremental_mapping(
            path,
            images,
            unsorted,
            mapping_options(smallest, seed),
            initial_image_pair_callback=lambda: registered(2),
            next_image_callback=lambda: registered(1),
        )
        shutil.rmtree(unsorted)
        models = [model for model in found.values() if model.num_reg_images() >= smallest]
        if not models:
            return []
        models.sort(key=lambda model: (-model.num_reg_images(), -model.num_points3D()))
        for number, model in enumerate(models):
            model.extract_colors_for_all_images(images)
            (part / str(number)).mkdir()
            model.write_binary(part / str(number))
            model.write_text(part / str(number))
        models[0].export_PLY(part / POINTS)
        require_room_left(part)  # COLMAP does not say that its files are cut off
        save_scene(read_scene(models[0])[0], scene)
        return [figures(model) for model in models]


def figures(model: Any) -> dict[str, Any]:
    """What the benchmark says of a model (PROTOCOLS.md 7.3), and the photos in it."""
    return {
        "registered": model.num_reg_images(),
        "points": model.num_points3D(),
        "observations": model.compute_num_observations(),
        "track_length": model.compute_mean_track_length(),
        "observations_per_image": model.compute_mean_observations_per_reg_image(),
        "reprojection_error": model.compute_mean_reprojection_error(),
        "photos": sorted(model.image(number).name for number in model.reg_image_ids()),
    }
