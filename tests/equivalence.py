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


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "sdgmnet", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sdgmnet {' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def weights(path: Path) -> str:
    from safetensors.torch import load_file

    tensors = load_file(path)
    return digest(*(tensors[name] for name in sorted(tensors)))


def training(folder: Path) -> dict[str, Any]:
    """Short runs by several recipes, and one that is stopped and resumed."""
    found = {}
    small = ("--data", "demo", "--batch-size", "48", "--seed", "3", "--threads", "2")
    for recipe, iterations in (
        ("paper", 24),
        ("photos", 12),
        ("hynet", 8),
        ("hardnet", 6),
        ("l2net", 6),
        ("tfeat", 6),
        ("l2-pa", 12),
    ):
        out = folder / recipe
        run("train", "--recipe", recipe, *small, "--iterations", str(iterations), "-o", str(out))
        results = json.loads((out / "results.json").read_text())
        found[recipe] = {"weights": weights(out / "last.safetensors"), "results": numbers(results)}
    out = folder / "stopped"
    words = ["train", *small, "--iterations", "24", "--checkpoint-every", "5", "-o", str(out)]
    with subprocess.Popen([sys.executable, "-m", "sdgmnet", *words], stderr=subprocess.DEVNULL) as child:
        while not list((out / "checkpoints").glob("checkpoint-*[1-9]*.pt")) and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
    run("train", "-o", str(out), "--resume")
    found["resumed"] = {
        "weights": weights(out / "last.safetensors"),
        "equal": weights(out / "last.safetensors") == found["paper"]["weights"],
    }
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
        found[name] = digest(
            *a.keypoints, a.descriptors, *b.keypoints, b.descriptors, matches.pairs, matches.distance, matches.ratio
        )
    return found


def evaluations(folder: Path) -> dict[str, Any]:
    found = {}
    phototour = run("evaluate", "phototour", "sift", "rootsift", "sdgmnet", "--data", "demo", "--json")
    found["phototour"] = numbers(json.loads(phototour))
    if not DATA.is_dir():
        return found
    tfeat = f"tfeat:{DATA}/tfeat/tfeat-liberty.params"
    matching = run("evaluate", "matching", "rootsift", "sdgmnet", tfeat, "--root", f"{DATA}/sequences",
                   "--sequences", "v_churchill", "--keypoints", "1000", "--json")  # fmt: skip
    found["matching"] = numbers(json.loads(matching))
    run(
        "data",
        "hpatches",
        f"{DATA}/sequences",
        "-o",
        str(folder / "strips"),
        "--only",
        "boat",
        "v_churchill",
        "--patches",
        "400",
    )
    strips = run("evaluate", "hpatches", "rootsift", "sdgmnet", "--root", str(folder / "strips"), "--split", "all",
                 "--pairs", "20000", "--json")  # fmt: skip
    found["hpatches"] = numbers(json.loads(strips))
    return found


def reconstructions(folder: Path) -> dict[str, Any]:
    if not DATA.is_dir():
        return {}
    scene = DATA / "photos" / "lund6"
    found = {}
    benchmark = run("evaluate", "reconstruction", "rootsift", "sdgmnet", "colmap", "--root", str(scene), "--keypoints", "2000",
                    "-o", str(folder / "eth"), "--json")  # fmt: skip
    found["evaluate reconstruction"] = numbers(json.loads(benchmark))
    model = run("reconstruct", str(scene), "-o", str(folder / "model"), "--keypoints", "3000", "--json")
    found["reconstruct"] = numbers(json.loads(model))
    run("data", "photos", str(scene), "-o", str(folder / "patches"), "--dense-size", "400", "--json")
    patchset = folder / "patches" / "lund6"
    found["data photos"] = [digest(np.load(patchset / f"{name}.npy")) for name in ("patches", "point_id", "conflicts")]
    run("data", "views", str(scene), "-o", str(folder / "views"), "--photos", "3")
    patchset = folder / "views" / "lund6-views"
    found["data views"] = [digest(np.load(patchset / f"{name}.npy")) for name in ("patches", "point_id", "conflicts")]
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
