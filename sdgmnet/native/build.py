"""The C++ kernels as a shared library, compiled for this processor on first use and kept in the user's cache."""

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

from sdgmnet.errors import InputError
from sdgmnet.report import print_aside
from sdgmnet.storage import new_file

HERE = Path(__file__).parent
SOURCES = tuple(HERE / name for name in ("trunk.cpp", "batchnorm.cpp", "nearest.cpp"))
HEADERS = tuple(HERE / name for name in ("vectors.h", "convolution.h", "winograd.h", "layer.h"))
POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
SIGNATURES = {  # function -> type of its result, types of its arguments
    "sdgmnet_lanes": (INT, []),
    "sdgmnet_kept_floats": (LONG, [INT]),
    "sdgmnet_halve": (None, [POINTER, LONG, POINTER, INT]),
    "sdgmnet_forward": (None, [INT, POINTER, POINTER, LONG, POINTER, POINTER, INT]),
    "sdgmnet_backward": (None, [INT] + [POINTER] * 3 + [LONG] + [POINTER] * 3 + [INT]),
    "sdgmnet_layer_forward": (None, [INT] + [POINTER] * 7 + [LONG, INT]),
    "sdgmnet_layer_backward": (None, [INT] + [POINTER] * 14 + [LONG, INT]),
    "sdgmnet_nearest": (None, [POINTER, LONG, LONG, POINTER, POINTER, INT, INT] + [POINTER] * 6 + [LONG, INT]),
    "sdgmnet_pair_distances": (None, [POINTER] * 4 + [LONG, LONG, INT, POINTER, INT]),
    "sdgmnet_closer": (None, [POINTER] * 5 + [LONG] * 3 + [FLOAT, POINTER, LONG, POINTER, LONG, POINTER, INT]),
}
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17", "-shared", "-fPIC", "-pthread")


def compiler() -> str | None:
    """The first of $CXX, g++ and clang++ that is installed."""
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def library() -> ctypes.CDLL | None:
    """The library, compiled now if it is not in the cache; None where it cannot be compiled or loaded."""
    found = _load()
    return found if isinstance(found, ctypes.CDLL) else None


def why_not() -> str:
    """Why there is no library, for error messages."""
    found = _load()
    return found if isinstance(found, str) else ""


@functools.cache
def _load() -> ctypes.CDLL | str:
    if os.name != "posix":
        return "it needs Linux or macOS"
    try:
        path = build()
        try:
            return _open(path)
        except OSError:  # a damaged file in the cache
            path.unlink()
            return _open(build())
    except (InputError, OSError) as error:
        return str(error).rstrip(".")


def build() -> Path:
    """Compile for this processor, which takes seconds, unless the same source was compiled before by the same compiler."""
    tool = compiler()
    if tool is None:
        raise InputError("no C++ compiler was found: install g++ or clang++.")
    version = _output([tool, "--version"])[1]
    parts = (*(source.read_text() for source in (*HEADERS, *SOURCES)), tool, version, " ".join(FLAGS), _processor())
    name = f"native-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    reasons = []
    for folder in cache_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _require_ours(folder)
            if not (folder / name).exists():
                print_aside("Compiling the native library for this processor, once; this takes half a minute or so ...")
                with new_file(folder / name) as part:
                    _compile(tool, part)
            _require_ours(folder / name)
        except OSError as error:  # a home folder that is read-only, or that others can write to
            reasons.append(f"{folder}: {error.strerror or error}")
            continue
        return folder / name
    raise InputError(f"no cache folder that only this user can write to ({'; '.join(reasons)}).")


def cache_folders() -> list[Path]:
    """Where the library can be kept: the user's cache folder, else a folder of this user below the temporary folder."""
    folders = []
    if root := os.environ.get("XDG_CACHE_HOME"):
        folders.append(Path(root) / "sdgmnet")
    else:
        with contextlib.suppress(RuntimeError):  # a user without a home folder
            folders.append(Path.home() / ".cache" / "sdgmnet")
    return [*folders, Path(tempfile.gettempdir()) / f"sdgmnet-{os.getuid()}"]


def _require_ours(path: Path) -> None:
    """Load code only from files and folders that only this user can write to."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(0, "others can write to it", str(path))


def _output(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout, done.stderr


def _processor() -> str:
    """What -march=native depends on: a cache folder shared by several machines must not mix their code."""
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
        raise InputError(f"{tool} cannot compile the native library: {errors.strip()[-500:] or 'no output'}")
    target.chmod(0o755)


def _open(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
