"""The C++ kernels as a shared library: one that the wheel carries for this processor, or one compiled here on first use.

A wheel has a library for each target of `targets.TARGETS`, and the fastest that this processor runs is loaded. Where there is
none, as in a checkout, the kernels are compiled for this processor and kept in the user's cache. Where there is no compiler
either, torch does the work. SDGMNET_KERNELS overrides the choice: a target's name, compile or none.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sdgmnet.errors import InputError
from sdgmnet.native.targets import (
    FLAGS,
    HEADERS,
    HERE,
    PREBUILT,
    SOURCES,
    TARGETS,
    compile_command,
    compiler,
    cpuinfo,
    missing_features,
    runnable_targets,
)
from sdgmnet.report import print_aside
from sdgmnet.storage import new_file

VARIABLE = "SDGMNET_KERNELS"
CHOICES = (*TARGETS, "compile", "none")
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
    "sdgmnet_screen": (
        None,
        [POINTER, LONG, LONG, POINTER, POINTER, INT, INT] + [POINTER] * 6 + [LONG, POINTER, POINTER, LONG, FLOAT, INT],
    ),
    "sdgmnet_pair_distances": (None, [POINTER] * 4 + [LONG, LONG, INT, POINTER, INT]),
    "sdgmnet_closer": (None, [POINTER] * 5 + [LONG] * 3 + [FLOAT, POINTER, LONG, POINTER, LONG, POINTER, INT]),
}


class Kernels(NamedTuple):
    """The library, or the reason why there is none."""

    library: ctypes.CDLL | None
    origin: str  # one sentence without a full stop, for reports


def library() -> ctypes.CDLL | None:
    """The library, compiled now if need be; None where there is none. InputError if SDGMNET_KERNELS cannot be followed."""
    return kernels().library


def why_not() -> str:
    """Why there is no library, for error messages."""
    found = kernels()
    return found.origin if found.library is None else ""


def kernels() -> Kernels:
    """The library and where it comes from."""
    return _load(os.environ.get(VARIABLE) or None)


@contextlib.contextmanager
def forced(choice: str) -> Iterator[None]:
    """One of CHOICES within a block, whatever the environment says: for tests and measurements."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = choice
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


@functools.cache
def _load(choice: str | None) -> Kernels:
    if choice is None:
        return _by_default()
    if choice not in CHOICES:
        raise InputError(f"{VARIABLE} must be one of {', '.join(CHOICES)}, not {choice!r}.")
    try:
        return _as_asked(choice)
    except OSError as error:
        raise InputError(f"{VARIABLE}={choice}: the library cannot be loaded ({error}).") from error


def _by_default() -> Kernels:
    """The fastest that the package has for this processor; where it has none, compiled here."""
    if os.name != "posix":
        return Kernels(None, "the kernels need Linux or macOS")
    path = next((prebuilt(one) for one in runnable_targets() if prebuilt(one).exists()), None)
    if path is not None:
        try:
            return Kernels(_open(path), f"{path.stem}, prebuilt: the fastest that this processor runs")
        except OSError as error:
            return Kernels(None, f"{path} cannot be loaded ({error}): {VARIABLE}=compile compiles the kernels here")
    if compiler() is None:
        advice = "install the wheel, or g++ or clang++"
        return Kernels(None, f"this installation has no prebuilt kernels, and no C++ compiler was found: {advice}")
    try:
        return _compiled("native", "compiled here for this processor: this installation has no prebuilt kernels")
    except (InputError, OSError) as error:
        return Kernels(None, str(error).rstrip("."))


def _as_asked(choice: str) -> Kernels:
    reason = f"as {VARIABLE}={choice} asks"
    if choice == "none":
        return Kernels(None, f"turned off by {VARIABLE}=none")
    if choice == "compile":
        return _compiled("native", f"compiled here for this processor, {reason}")
    if missing := missing_features(choice):
        raise InputError(f"{VARIABLE}={choice}: this processor has no {', '.join(sorted(missing))}.")
    if prebuilt(choice).exists():
        return Kernels(_open(prebuilt(choice)), f"{choice}, prebuilt, {reason}")
    return _compiled(choice, f"{choice}, compiled here, {reason}")


def prebuilt(target: str) -> Path:
    """Where a wheel has the library of a target."""
    return HERE / PREBUILT / f"{target}.so"


def _compiled(march: str, origin: str) -> Kernels:
    path = build(march)
    try:
        return Kernels(_open(path), origin)
    except OSError:  # a damaged file in the cache
        path.unlink()
        return Kernels(_open(build(march)), origin)


def build(march: str = "native") -> Path:
    """Compile, which takes seconds, unless the same source was compiled before by the same compiler on such a processor."""
    tool = compiler()
    if tool is None:
        raise InputError("no C++ compiler was found: install g++ or clang++.")
    version = _output([tool, "--version"])[1]
    sources = [source.read_text() for source in (*HEADERS, *SOURCES)]
    parts = (*sources, tool, version, " ".join(FLAGS), march, _processor())
    name = f"native-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    reasons = []
    for folder in cache_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _require_ours(folder)
            if not (folder / name).exists():
                print_aside("Compiling the native library for this processor, once; this takes half a minute or so ...")
                with new_file(folder / name) as part:
                    _compile(tool, march, part)
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
    known = {line for line in cpuinfo() if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join(sorted(known)) or platform.processor() + platform.machine()


def _compile(tool: str, march: str, target: Path) -> None:
    code, _, errors = _output(compile_command(tool, FLAGS, march, target))
    if code != 0 or not target.exists():
        raise InputError(f"{tool} cannot compile the native library: {errors.strip()[-500:] or 'no output'}")
    target.chmod(0o755)


def _open(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
