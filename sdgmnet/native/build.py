"""C++ -> a shared library for this very processor, built once and kept in the user's cache."""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.storage import new_file

HERE = Path(__file__).parent
SOURCES = tuple(HERE / name for name in ("trunk.cpp", "batchnorm.cpp", "nearest.cpp", "distances.cpp"))
HEADERS = tuple(HERE / name for name in ("vectors.h", "convolution.h", "winograd.h", "layer.h"))
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
        path = build()
        try:
            return _declare(ctypes.CDLL(str(path)))
        except OSError:  # a damaged file in the cache
            path.unlink()
            return _declare(ctypes.CDLL(str(build())))
    except (InputError, OSError) as error:
        return str(error).rstrip(".")


def build() -> Path:
    """Compile for this processor, a matter of seconds; what was built from the same source by the same compiler is kept."""
    tool = compiler()
    if tool is None:
        raise InputError("no C++ compiler is here: install g++ or clang++.")
    version = _output([tool, "--version"])[1]
    parts = (*(source.read_text() for source in (*HEADERS, *SOURCES)), tool, version, " ".join(FLAGS), _processor())
    name = f"native-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    reasons = []
    for folder in cache_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _require_ours(folder)
            if not (folder / name).exists():
                with new_file(folder / name) as part:
                    _compile(tool, part)
            _require_ours(folder / name)
        except OSError as error:  # a home that cannot be written to, or that others can write to
            reasons.append(f"{folder}: {error.strerror or error}")
            continue
        return folder / name
    raise InputError(f"it cannot be kept in a folder of this user's own ({'; '.join(reasons)}).")


def cache_folders() -> list[Path]:
    """Where the library may be kept: the user's cache, else a folder of the user's own among the temporary files."""
    folders = []
    if root := os.environ.get("XDG_CACHE_HOME"):
        folders.append(Path(root) / "sdgmnet")
    else:
        with contextlib.suppress(RuntimeError):  # a user without a home
            folders.append(Path.home() / ".cache" / "sdgmnet")
    return [*folders, Path(tempfile.gettempdir()) / f"sdgmnet-{os.getuid()}"]


def _require_ours(path: Path) -> None:
    """Code is loaded only from what this user alone could have written."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(0, "others could have written to it", str(path))


def _output(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout, done.stderr


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
    code, _, errors = _output([tool, *FLAGS, *map(str, SOURCES), "-o", str(target)])
    if code != 0 or not target.exists():
        raise InputError(f"{tool} cannot build the native library: {errors.strip()[-500:] or 'it wrote nothing'}")
    target.chmod(0o755)


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    pointer, count, threads = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    loaded.sdgmnet_lanes.restype = ctypes.c_int
    loaded.sdgmnet_kept_floats.restype = ctypes.c_long
    loaded.sdgmnet_forward.argtypes = [pointer, pointer, count, pointer, pointer, threads]
    loaded.sdgmnet_forward.restype = None
    loaded.sdgmnet_backward.argtypes = [pointer, pointer, pointer, count, pointer, pointer, pointer, threads]
    loaded.sdgmnet_backward.restype = None
    loaded.sdgmnet_layer_forward.argtypes = [threads, *[pointer] * 7, count, threads]
    loaded.sdgmnet_layer_forward.restype = None
    loaded.sdgmnet_layer_backward.argtypes = [threads, *[pointer] * 14, count, threads]
    loaded.sdgmnet_layer_backward.restype = None
    loaded.sdgmnet_nearest.argtypes = [
        pointer, count, count, pointer, pointer, threads, threads, *[pointer] * 6, count, threads
    ]  # fmt: skip
    loaded.sdgmnet_nearest.restype = None
    problem: list[Any] = [*[pointer] * 5, *[count] * 3, ctypes.c_float]
    loaded.sdgmnet_pair_distances.argtypes = [pointer, count, pointer, pointer, count, pointer, threads]
    loaded.sdgmnet_pair_distances.restype = None
    loaded.sdgmnet_distances.argtypes = [pointer, pointer, count, count, count, pointer]
    loaded.sdgmnet_distances.restype = None
    loaded.sdgmnet_first_nearest.argtypes = [*problem, pointer, pointer, threads]
    loaded.sdgmnet_first_nearest.restype = None
    loaded.sdgmnet_closer.argtypes = [*problem, pointer, count, pointer, count, pointer, threads]
    loaded.sdgmnet_closer.restype = None
    return loaded
