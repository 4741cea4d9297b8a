"""The functions between a command and the heart of its work: the call stack when the heart is first entered.

    python -m tests.walks                                    # all walks, as a table
    python -m tests.walks sdgmnet.loss.sdgm:forward sdgmnet train --data demo --iterations 2 --batch-size 16 -o run

Needs SDGMNET_DATA for the walks that read photos.
"""

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from tests.conftest import blob_patches

ROOMS_OF = ("sdgmnet", "reproduce", "bench")


def name_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_name}"


def stack_of(frame: FrameType | None) -> list[str]:
    """Our functions from the outermost to this one; comprehensions and other libraries are left out."""
    names: list[str] = []
    while frame is not None:
        name = name_of(frame)
        if name.split(".")[0].split(":")[0] in ROOMS_OF and "<" not in name:
            names.append(name)
        frame = frame.f_back
    return names[::-1]


def rooms_of(names: list[str]) -> list[str]:
    """The rooms passed through in order; a room is the part after the package: `sdgmnet.loss.sdgm:forward` is in `loss`."""
    rooms: list[str] = []
    for name in names:
        parts = name.split(":")[0].split(".")
        room = parts[1] if parts[0] == "sdgmnet" and len(parts) > 1 else parts[0]
        if not rooms or rooms[-1] != room:
            rooms.append(room)
    return rooms


def walk(heart: str, program: str, words: list[str]) -> None:
    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and name_of(frame) == heart:
            sys.setprofile(None)
            names = stack_of(frame)
            print(
                "\n".join(names),
                f"\n{len(names)} functions; {' > '.join(rooms_of(names))}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(0)

    sys.argv = [program, *words]
    threading.setprofile(watch)
    sys.setprofile(watch)
    runpy.run_module(program, run_name="__main__")


def all_walks(data: Path, out: str) -> dict[str, tuple[str, str]]:
    """Heart and command of every walk. The photos are few and small: a profiled command is slow."""
    scene = Path(out, "photos")
    scene.mkdir()
    photos = [shutil.copy(photo, scene) for photo in sorted((data / "reconstruction" / "fountain").glob("*"))[:5]]
    train = "--iterations 2 --batch-size 16"
    words = ["data", "hpatches", f"{data}/sequences", "--only", "bark", "--patches", "30", "-o", f"{out}/strips"]
    subprocess.run([sys.executable, "-m", "sdgmnet", *words], stdout=subprocess.DEVNULL, check=True)
    for name in ("a", "b"):
        blob_patches(20, 3, seed=ord(name)).save(Path(out, name))
    return {
        "train": ("sdgmnet.loss.sdgm:forward", f"sdgmnet train --data {out}/a {train} -o {out}/run"),
        "describe": ("sdgmnet.native.trunk:describe", f"sdgmnet describe {photos[0]} -o {out}/one.h5"),
        "match": ("sdgmnet.native.nearest:two_nearest_and_back", f"sdgmnet match {photos[0]} {photos[1]}"),
        "data photos": ("sdgmnet.data.photos.pipeline:write_scene", f"sdgmnet data photos {scene} -o {out}/patches"),
        "evaluate hpatches": (
            "sdgmnet.native.nearest:nearest",
            f"sdgmnet evaluate hpatches sift --root {out}/strips --split all",
        ),
        "reconstruct": ("sdgmnet.sfm.process:run_in_process", f"sdgmnet reconstruct {scene} -o {out}/model"),
        "reproduce table1": (
            "sdgmnet.loss.sdgm:forward",
            f"reproduce table1 --methods sdgmnet --groups A={out}/a B={out}/b {train} -o {out}/table1",
        ),
    }


def main() -> None:
    if len(sys.argv) > 2:
        walk(sys.argv[1], sys.argv[2], sys.argv[3:])
        return
    with tempfile.TemporaryDirectory() as out:
        for title, (heart, command) in all_walks(Path(os.environ["SDGMNET_DATA"]), out).items():
            print(f"## {title}", flush=True)
            subprocess.run(
                [sys.executable, "-m", "tests.walks", heart, *command.split()], stdout=subprocess.DEVNULL, check=False
            )


if __name__ == "__main__":
    main()
