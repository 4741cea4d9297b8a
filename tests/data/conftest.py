from pathlib import Path

import pytest

from sdgmnet.data.photos.correspondences import PointOptions
from sdgmnet.data.photos.tracks import Points, points_by_geometry
from sdgmnet.sfm.workspace import write_map
from tests.sfm.rendered import Rendered, rendered_scene, write_workspace


@pytest.fixture(scope="session")
def rendered() -> Rendered:
    """Three views of a wall, a floor and a sphere, with exact depths and normals."""
    return rendered_scene(width=320, height=240, count=3)


@pytest.fixture(scope="session")
def model(rendered: Rendered, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose depth maps are the truth."""
    folder = tmp_path_factory.mktemp("work") / "0"
    write_workspace(rendered, folder)
    for view, depths, normals in zip(rendered.scene.views, rendered.depths, rendered.normals, strict=True):
        write_map(folder / f"stereo/depth_maps/{view.name}.geometric.bin", depths)
        write_map(folder / f"stereo/normal_maps/{view.name}.geometric.bin", normals)
    return folder


@pytest.fixture(scope="session")
def points(model: Path) -> Points:
    return points_by_geometry(model, PointOptions(smallest_scale=1.0))
