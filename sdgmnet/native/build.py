"""trunk.cpp -> a shared library for this very processor, built once and kept in the user's cache."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from sdgmnet.errors import InputError
from sdgmnet.files import new_file

SOURCE = Path(__file__).with_name("trunk.cpp")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17", "-shared", "-fPIC", "-pthread")


def compiler() -> str | None:
    """The C++ compiler to use: $CXX, g++ or clang++, whichever is there first."""
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def library() -> ctypes.CDLL | None:
    """The library, built now if it is not in the cache; None where it cannot be built or loaded."""
    found = _load()
    return found if isinstance(found, ctypes.CDLL) else None


def why_not() -> str:
    """Why there is no library, for an error's text."""
    found = _load()
    return found if isinstance(found, str) else ""


@functools.cache
def _load() -> ctypes.CDLL | str:
    if os.name != "posix":
        return "it needs Linux or macOS"
    try:
        return _declare(ctypes.CDLL(str(build())))
    except (InputError, OSError) as error:
        return str(error).rstrip(".")


def build() -> Path:
    """Compile for this processor, a matter of seconds; what was built from the same source by the same compiler is kept."""
    tool = compiler()
    if tool is None:
        raise InputError("no C++ compiler is here: install g++ or clang++.")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    parts = (SOURCE.read_text(), tool, version, " ".join(FLAGS), _processor())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    for folder in (cache_folder(), Path(tempfile.gettempdir()) / f"sdgmnet-{os.getuid()}"):
        target = folder / f"trunk-{key}.so"
        if target.exists() and _is_ours(target):
            return target
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_ours(folder):
                continue
            with new_file(target) as part:
                _compile(tool, part)
        except OSError:  # a home that cannot be written to
            continue
        return target
    raise InputError(f"the native engine cannot be kept in {cache_folder()}: make that folder writable.")


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "sdgmnet"


def _is_ours(path: Path) -> bool:
    """Code is loaded only from what this user alone could have written."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _processor() -> str:
    """What -march=native depends on, so that a cache shared between machines never holds the wrong code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    )


def _compile(tool: str, target: Path) -> None:
    done = subprocess.run([tool, *FLAGS, str(SOURCE), "-o", str(target)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"{tool} cannot build {SOURCE.name}: {done.stderr.strip()[-500:]}")
    target.chmod(0o755)


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    pointer, count, threads = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    loaded.sdgmnet_lanes.restype = ctypes.c_int
    loaded.sdgmnet_kept_floats.restype = ctypes.c_long
    loaded.sdgmnet_forward.argtypes = [pointer, pointer, count, pointer, pointer, threads]
    loaded.sdgmnet_forward.restype = None
    loaded.sdgmnet_backward.argtypes = [pointer, pointer, pointer, count, pointer, pointer, pointer, threads]
    loaded.sdgmnet_backward.restype = None
    return loaded
