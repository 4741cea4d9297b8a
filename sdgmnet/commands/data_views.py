"""`sdgmnet data views`."""

from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from rich.console import Console

from sdgmnet.commands.data import summarise
from sdgmnet.data.synthetic.sets import PHOTO_VIEWING, ViewOptions, make_view_sets
from sdgmnet.errors import InputError
from sdgmnet.report import Out, counting_bar


@dataclass(frozen=True)
class ViewsArguments:
    """Training patches from any images, without reconstruction: each sub-folder of FOLDER is a scene, or FOLDER is one.

        sdgmnet data views my_photos -o my_patches

    Every image is turned, tilted, scaled and relit; keypoints are detected anew in each view and matched by the known
    geometry. The set of a scene is called <scene>-views. Where --data also holds the scene's set from `data photos`, a batch
    takes its points from one of the two, and of the views from a single image's, since a scene's images show the same.
    """

    folder: tyro.conf.Positional[Path]
    """Images, or a sub-folder of images for each scene."""
    out: Out
    """Where the PatchSets go."""
    photos: int = ViewOptions.photos
    """Images of a scene, at most, evenly spread over those there are."""
    views: int = PHOTO_VIEWING.views
    """Views of each image, itself among them."""
    keypoints: int = PHOTO_VIEWING.keypoints
    """Of each view, at most."""
    size: int = ViewOptions.size
    """Longest side; larger images are made smaller."""
    seed: int = ViewOptions.seed
    """Of the views."""
    threads: int = 2
    """Images worked on at once. The patches do not depend on it."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(ViewsArguments, prog="sdgmnet data views", args=words)
    for name, least in (("photos", 1), ("views", 2), ("keypoints", 1), ("size", 64), ("threads", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise InputError(f"--{name} must be at least {least}, not {getattr(arguments, name)}.")
    viewing = replace(PHOTO_VIEWING, views=arguments.views, keypoints=arguments.keypoints)
    options = ViewOptions(viewing, arguments.photos, arguments.size, arguments.seed)
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    with counting_bar(errors) as bar:
        task = bar.add_task("views", total=None)
        sets, broken, failures = make_view_sets(
            arguments.folder,
            arguments.out,
            options,
            threads=arguments.threads,
            tell=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
    for one in broken:
        errors.print(f"{one.photo} {one.reason}; left out.", markup=False)
    for failure in failures:
        errors.print(f"{failure.scene} skipped: {failure.reason}", markup=False)
    if not sets:
        raise InputError("no scene gave patches; the reasons stand above.")
    summarise(sets)
