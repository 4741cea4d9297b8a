"""What this installation has and lacks, as findings with advice: `sdgmnet doctor`. Only the last ones need torch."""

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from sdgmnet.errors import InputError
from sdgmnet.native.build import VARIABLE, cache_folders, kernels
from sdgmnet.native.targets import TARGETS, cpuinfo, processor_features, runnable_targets
from sdgmnet.pretrained import ALIAS, BEST, SHIPPED, shipped_names
from sdgmnet.version import __version__

# Distributions that give the same module, the usual one first.
REQUIRED = (
    ("torch",),
    ("numpy",),
    ("kornia",),
    ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python"),
    ("h5py",),
    ("scipy",),
    ("safetensors",),
    ("rich",),
    ("matplotlib",),
    ("filelock",),
    ("shtab",),
)
EXTRAS = {  # extra in pyproject.toml -> its distributions
    "sfm": ("pycolmap", "faiss-cpu"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "demo": ("scikit-image",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "hub": ("huggingface_hub",),
    "app": ("gradio", "scikit-image"),
    "pml": ("pytorch-metric-learning",),
}


class Finding(NamedTuple):
    name: str
    value: str
    advice: str = ""  # what to do about it, in one sentence; empty where nothing is to be done


def findings() -> Iterator[Finding]:
    """All findings, one by one: those that need torch, which takes seconds to import, come last."""
    yield from quick_findings()
    yield from torch_findings()


def quick_findings() -> Iterator[Finding]:
    yield Finding("sdgmnet", f"{__version__} in {Path(__file__).parent}")
    yield Finding("python", f"{platform.python_version()} in {sys.prefix}; {platform.platform()}")
    yield required_packages()
    yield processor()
    yield kernel_choice()
    yield cache()
    yield weights()
    yield from (extra(name, packages) for name, packages in EXTRAS.items())


def torch_findings() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", f"cannot be imported ({error})", "Install it again: https://pytorch.org/get-started.")
        return
    yield threads(torch.get_num_threads(), usable_cores())
    names = [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())]
    yield gpu(names, torch.version.cuda, has_driver=Path("/proc/driver/nvidia/version").exists())


def installed(names: Sequence[str]) -> str | None:
    """Name and version of the first distribution that is installed."""
    for name in names:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


def required_packages() -> Finding:
    missing = [names[0] for names in REQUIRED if installed(names) is None]
    advice = f"Install what is missing: pip install {' '.join(missing)}." if missing else ""
    there = [found for names in REQUIRED if (found := installed(names))]
    return Finding("packages", ", ".join([*there, *(f"{name} missing" for name in missing)]), advice)


def extra(name: str, packages: Sequence[str]) -> Finding:
    there = [installed([one]) or f"{one} missing" for one in packages]
    complete = not any(one.endswith(" missing") for one in there)
    advice = "" if complete else f"If you need it: pip install 'sdgmnet[{name}]'."
    return Finding(f"extra {name}", ", ".join(there), advice)


def processor() -> Finding:
    """Its model, and the best target that it runs."""
    level = next(iter(runnable_targets()), None)
    if level is None:
        known = ", ".join(sorted({target.machine for target in TARGETS.values()}))
        return Finding("processor", platform.machine(), f"Prebuilt kernels are for {known}: install g++ or clang++.")
    unread = "" if processor_features() else ", /proc/cpuinfo cannot be read"
    names = [line.partition(":")[2].strip() for line in cpuinfo() if line.startswith("model name")]
    return Finding("processor", f"{next(iter(names), platform.machine())} ({usable_cores()} cores), {level}{unread}")


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_choice() -> Finding:
    """Which engine runs on this CPU, and why."""
    try:
        found = kernels()
    except InputError as error:
        return Finding("kernels", f"error: {error}", f"Unset {VARIABLE}, or set it to another value.")
    if found.library is not None:
        return Finding("kernels", f"native ({found.origin})")
    advice = "The kernels are several times as fast: docs/decisions/native-kernels.md."
    return Finding("kernels", f"torch ({found.origin})", advice)


def engine_line() -> str:
    """The engine on this CPU and the reason, for `sdgmnet --version --verbose`."""
    return f"engine on this CPU: {kernel_choice().value}"


def cache() -> Finding:
    """Where kernels that are compiled here are kept."""
    if os.name != "posix":
        return Finding("cache", "not used")
    folder = cache_folders()[0]
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    if os.access(nearest, os.W_OK):
        return Finding("cache", str(folder))
    advice = "Set XDG_CACHE_HOME to a folder that can; only compiled kernels need it."
    return Finding("cache", f"{folder} cannot be written", advice)


def weights() -> Finding:
    names = shipped_names()
    if BEST not in names:
        advice = "The installation is incomplete: install sdgmnet again."
        return Finding("weights", f"{BEST} is missing in {SHIPPED}", advice)
    return Finding(
        "weights",
        f"{', '.join(names)} in {SHIPPED} ({ALIAS} is {BEST}); only names on the Hugging Face Hub are downloaded",
    )


def threads(used: int, cores: int) -> Finding:
    advice = f"torch uses {used} of {cores} cores: check OMP_NUM_THREADS." if used < cores else ""
    return Finding("threads", str(used), advice)


def gpu(names: Sequence[str], cuda: str | None, has_driver: bool) -> Finding:
    if names:
        return Finding("gpu", f"{', '.join(names)} (torch is built for CUDA {cuda})")
    if not has_driver:
        return Finding("gpu", "none")
    reason = "this torch is built without CUDA" if cuda is None else f"torch, built for CUDA {cuda}, finds none"
    return Finding("gpu", f"a driver is installed, but {reason}", "Install the torch build for your CUDA version.")
