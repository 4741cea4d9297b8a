"""Features and verified matches of a workspace -> OpenMVG's files: NAME.feat, NAME.desc, matches.f.txt, image_describer.json.

Pixel centres are at integers there as here; its scale is sigma, its orientation our angle. Images are numbered by their
names, as OpenMVG's image listing does. Descriptors are those of its SIFT regions: 128 numbers, uint8.
"""

import json
from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import read_features
from sdgmnet.sfm.database import image_ids, open_database, read_matches
from sdgmnet.sfm.workspace import Workspace
from sdgmnet.storage import new_folder

DIMENSIONS = 128
OFFSET, SCALE = 128, 256  # unit descriptors as uint8: distances are multiplied by SCALE
SIFT = {"polymorphic_id": 2147483649, "polymorphic_name": "SIFT_Regions", "ptr_wrapper": {"valid": 1, "data": {}}}


def write_openmvg(workspace: Workspace, out: Path | str) -> tuple[int, int]:
    """Write a new folder; returns the numbers of images and of verified pairs."""
    if not workspace.features.is_file():
        raise InputError(f"{workspace.features} does not exist: give the folder of sdgmnet reconstruct.")
    with open_database(workspace.database) as database:
        ids = image_ids(database)
        names = sorted(ids)
        verified = [row for row in read_matches(database, ids, "two_view_geometries") if len(row[2])]
    stems = [Path(name).stem for name in names]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise InputError(
            f"{workspace.folder} has two photos called {twice[0]}, which OpenMVG cannot tell apart: rename one."
        )
    index_of = {name: index for index, name in enumerate(names)}
    with new_folder(out) as part:
        for name, stem in zip(names, stems, strict=True):
            features = read_features(workspace.features, name)
            keypoints, descriptors = features.keypoints, features.descriptors
            if descriptors.shape[1] != DIMENSIONS:
                raise InputError(
                    f"{workspace.features}: OpenMVG's descriptors have {DIMENSIONS} dimensions, not "
                    f"{descriptors.shape[1]}: use another --descriptor."
                )
            table = np.column_stack([keypoints.xy, keypoints.sigma, keypoints.angle])
            np.savetxt(part / f"{stem}.feat", table, fmt="%.6g")
            quantised = np.clip(np.rint(OFFSET + SCALE * descriptors), 0, 255).astype(np.uint8)
            (part / f"{stem}.desc").write_bytes(np.uint64(len(quantised)).tobytes() + quantised.tobytes())
        with (part / "matches.f.txt").open("w", encoding="ascii") as file:
            for first, second, matches in verified:
                file.write(f"{index_of[first]} {index_of[second]}\n{len(matches)}\n")
                np.savetxt(file, matches, fmt="%d")
        (part / "image_describer.json").write_text(json.dumps({"regions_type": SIFT}, indent=4), encoding="ascii")
    return len(names), len(verified)
