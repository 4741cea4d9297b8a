"""The same inputs through the public API and the command line, written down as digests and numbers, to compare two versions.

    python tests/equivalence.py record before.json          # in a checkout of one version
    python tests/equivalence.py record after.json           # in a checkout of the other, on the same machine
    python tests/equivalence.py compare before.json after.json
    python tests/equivalence.py speed                       # alternately in both checkouts, several times

It uses only names that both versions have: `sdgmnet.SDGMLoss`, `sdgmnet.loss.LOSSES`, `SDGMNet`, `describe`, `match` and the
commands. Bits depend on the processor and the libraries, so both records must come from one machine. Photos and sequences are
those of SDGMNET_DATA; without it the parts that need them are left out. Takes about ten minutes on two cores.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

DATA = Path(os.environ.get("SDGMNET_DATA", ""))
NOT_RESULTS = ("seconds", "peak", "bytes", "version", "time")  # keys whose numbers differ from run to run


def digest(*arrays: Any) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        one = np.ascontiguousarray(array.detach().numpy() if isinstance(array, torch.Tensor) else array)
        whole.update(f"{one.dtype} {one.shape}".encode() + one.tobytes())
    return whole.hexdigest()[:16]


def numbers(content: Any) -> list[float]:
    """All numbers of a JSON document in order, whatever the keys are called; times and memory are left out."""
    if isinstance(content, dict):
        kept = (value for key, value in content.items() if not any(word in key for word in NOT_RESULTS))
        return [number for value in kept for number in numbers(value)]
    if isinstance(content, list):
        return [number for value in content for number in numbers(value)]
    return [content] if isinstance(content, int | float) and not isinstance(content, bool) else []


def unit_rows(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    anchor = torch.randn(200, 128, generator=generator, dtype=torch.float64)
    positive = anchor + 0.7 * torch.randn(200, 128, generator=generator, dtype=torch.float64)
    rows = (torch.nn.functional.normalize(one, dim=1).to(dtype).requires_grad_() for one in (anchor, positive))
    return next(rows), next(rows)


def losses() -> dict[str, Any]:
    """Value, gradients and state of every registered loss over five batches."""
    from sdgmnet.loss import LOSSES

    found = {}
    for name, make in LOSSES.items():
        for dtype in (torch.float32, torch.float64):
            loss, parts = make(), []
            for step in range(5):
                anchor, positive = unit_rows(step, dtype)
                more = {}
                if getattr(loss, "needs", ()):
                    encoded = [
                        type("E", (), {"raw": 3 * one, "maps": (one[:, :, None, None],) * 2})
                        for one in (anchor, positive)
                    ]
                    more = {"anchor_encoded": encoded[0], "positive_encoded": encoded[1]}
                value = loss(anchor, positive, progress=step / 5, **more)
                parts += [value.detach(), *torch.autograd.grad(value, (anchor, positive))]
            found[f"{name} {dtype}"] = digest(*parts, *(state for state in loss.state_dict().values()))
    return found


def encoders() -> dict[str, Any]:
    import sdgmnet
    from sdgmnet.encoders import ENCODERS

    patches = np.random.default_rng(0).integers(0, 256, (700, 64, 64), dtype=np.uint8)
    shipped = sdgmnet.SDGMNet.from_pretrained()
    found = {
        f"shipped {engine}": digest(sdgmnet.describe_patches(shipped, patches, engine=engine))
        for engine in ("eager", "native")
    }
    for name, make in ENCODERS.items():
        torch.manual_seed(0)
        found[name] = digest(sdgmnet.describe_patches(make().eval(), patches))
    return found


def run(line: str) -> str:
    """Paths must not have spaces."""
    command = [sys.executable, "-m", "sdgmnet", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sdgmnet {line} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def weights(path: Path) -> str:
    from safetensors.torch import load_file

    tensors = load_file(path)
    return digest(*(tensors[name] for name in sorted(tensors)))


def training(folder: Path) -> dict[str, Any]:
    """Short runs by several recipes, and one that is stopped and resumed."""
    found = {}
    small = "--data demo --batch-size 48 --seed 3 --threads 2"
    recipes = {"paper": 24, "photos": 12, "hynet": 8, "hardnet": 6, "l2net": 6, "tfeat": 6, "l2-pa": 12}
    for recipe, iterations in recipes.items():
        out = folder / recipe
        run(f"train --recipe {recipe} {small} --iterations {iterations} -o {out}")
        results = json.loads((out / "results.json").read_text())
        found[recipe] = {"weights": weights(out / "last.safetensors"), "results": numbers(results)}
    out = folder / "stopped"
    words = f"train {small} --iterations 24 --checkpoint-every 5 -o {out}"
    with subprocess.Popen([sys.executable, "-m", "sdgmnet", *words.split()], stderr=subprocess.DEVNULL) as child:
        while not list((out / "checkpoints").glob("checkpoint-*[1-9]*.pt")) and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
    run(f"train -o {out} --resume")
    resumed = weights(out / "last.safetensors")
    found["resumed"] = {"weights": resumed, "equal": resumed == found["paper"]["weights"]}
    return found


def image_features() -> dict[str, Any]:
    from skimage import data

    import sdgmnet

    image = data.camera()
    turned = np.ascontiguousarray(np.rot90(image)[40:, :400])
    found = {}
    for name in ("sdgmnet", "sift", "rootsift"):
        a, b = (sdgmnet.describe(one, descriptor=name, limit=800) for one in (image, turned))
        matches = sdgmnet.match(a, b, ratio=0.95)
        found[name] = digest(*a.keypoints, a.descriptors, *b.keypoints, b.descriptors, *matches)
    return found


def evaluations(folder: Path) -> dict[str, Any]:
    found = {}
    phototour = run("evaluate phototour sift rootsift sdgmnet --data demo --json")
    found["phototour"] = numbers(json.loads(phototour))
    if not DATA.is_dir():
        return found
    descriptors = f"rootsift sdgmnet tfeat:{DATA}/tfeat/tfeat-liberty.params"
    some = f"--root {DATA}/sequences --sequences v_churchill --keypoints 1000"
    found["matching"] = numbers(json.loads(run(f"evaluate matching {descriptors} {some} --json")))
    strips = folder / "strips"
    run(f"data hpatches {DATA}/sequences -o {strips} --only boat v_churchill --patches 400")
    tasks = run(f"evaluate hpatches rootsift sdgmnet --root {strips} --split all --pairs 20000 --json")
    found["hpatches"] = numbers(json.loads(tasks))
    return found


def reconstructions(folder: Path) -> dict[str, Any]:
    if not DATA.is_dir():
        return {}
    scene, found = DATA / "photos" / "lund6", {}
    eth = f"--root {scene} --keypoints 2000 -o {folder}/eth --json"
    found["evaluate reconstruction"] = numbers(
        json.loads(run(f"evaluate reconstruction rootsift sdgmnet colmap {eth}"))
    )
    model = run(f"reconstruct {scene} -o {folder}/model --keypoints 3000 --json")
    found["reconstruct"] = numbers(json.loads(model))
    run(f"data photos {scene} -o {folder}/patches --dense-size 400 --json")
    run(f"data views {scene} -o {folder}/views --photos 3")
    for kind, patchset in (("photos", folder / "patches/lund6"), ("views", folder / "views/lund6-views")):
        names = ("patches", "point_id", "conflicts")
        found[f"data {kind}"] = [digest(np.load(patchset / f"{name}.npy")) for name in names]
    return found


def record(path: Path) -> None:
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}
        for part, make in (
            ("losses", losses),
            ("encoders", encoders),
            ("pictures", image_features),
            ("training", lambda: training(folder)),
            ("evaluations", lambda: evaluations(folder)),
            ("reconstructions", lambda: reconstructions(folder)),
        ):
            began = time.perf_counter()
            found[part] = make()
            print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def speed() -> dict[str, float]:
    """Best seconds: describing 2048 patches, the loss with gradients at N = 1024, matching 8000 x 8000."""
    import sdgmnet

    def best(repeats: int, work: Callable[[], Any]) -> float:
        work()
        began = [time.perf_counter()]
        for _ in range(repeats):
            work()
            began.append(time.perf_counter())
        return min(after - before for before, after in pairwise(began))

    patches = np.random.default_rng(0).integers(0, 256, (2048, 64, 64), dtype=np.uint8)
    encoder, loss = sdgmnet.SDGMNet.from_pretrained(), sdgmnet.SDGMLoss()
    rows = torch.nn.functional.normalize(torch.randn(8000, 128, generator=torch.Generator().manual_seed(0)), dim=1)
    anchor, positive = rows[:1024].clone().requires_grad_(), rows[:1024].flip(1).requires_grad_()
    descriptors = rows.numpy()
    return {
        "describe_patches": best(8, lambda: sdgmnet.describe_patches(encoder, patches)),
        "loss": best(30, lambda: loss(anchor, positive, progress=1.0).backward()),
        "match": best(6, lambda: sdgmnet.match(descriptors, descriptors[::-1].copy())),
    }


def leaves(content: Any, place: str = "") -> dict[str, Any]:
    if isinstance(content, dict):
        return {key: value for name, one in content.items() for key, value in leaves(one, f"{place}/{name}").items()}
    return {place: content}


def compare(before: Path, after: Path) -> int:
    first, second = (leaves(json.loads(path.read_text())) for path in (before, after))
    different = [place for place in {**first, **second} if first.get(place) != second.get(place)]
    for place in different:
        print(f"{place}\n  before {str(first.get(place))[:300]}\n  after  {str(second.get(place))[:300]}")
    print(f"{len(first)} results before, {len(second)} after, {len(different)} different.")
    return 1 if different else 0


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    elif sys.argv[1] == "speed":
        print(json.dumps(speed()))
    else:
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
