"""The command line. A command is a function of its parsed options; bad input ends in one sentence and exit code 2.

`python -m reproduce` and `python -m bench` share `main` with their own commands.
"""

import errno
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sdgmnet.benchmarks import BENCHMARKS
from sdgmnet.errors import InputError, Stopped
from sdgmnet.options import HELP, Verbosity, parse, split_verbosity
from sdgmnet.registry import load
from sdgmnet.storage import require_writable
from sdgmnet.version import __version__

VERSION = ("version", "--version", "-V", "-v")
MULTI_PROCESS = ("train", "describe", "match")  # what torchrun may start
COMMON = "sdgmnet.commands.evaluate:Arguments"  # options of benchmarks that have none of their own


class Command(NamedTuple):
    """Places are module:name. They are imported when the command is called, the options first: errors in them are quick."""

    place: str  # function of the options
    summary: str
    options: str = COMMON  # dataclass


def own(place: str, options: str, summary: str) -> Command:
    """A command in `sdgmnet.commands`: module:function, and the dataclass of its options in the same module."""
    place = f"sdgmnet.commands.{place}"
    return Command(place, summary, f"{place.partition(':')[0]}:{options}")


COMMANDS: dict[str, Command] = {
    "demo": own("demo:main", "Arguments", "Match a pair of images, then train an encoder for a few minutes."),
    "describe": own(
        "describe:main", "DescribeArguments", "Detect keypoints and compute descriptors of images; write an h5 file."
    ),
    "match": own(
        "match:main", "MatchArguments", "Match two images and draw the matches, or match all pairs of a folder."
    ),
    "reconstruct": own(
        "reconstruct:main", "ReconstructArguments", "Reconstruct a 3-D model from photos; write a COLMAP workspace."
    ),
    "train": own(
        "train:main", "TrainArguments", "Train a descriptor: SDGMNet with the paper's settings, or another loss."
    ),
    **{f"evaluate {name}": Command(*benchmark) for name, benchmark in BENCHMARKS.items()},
    "data phototour": own(
        "data:phototour",
        "PhototourArguments",
        "Convert or download the UBC PhotoTour data set, as PatchSets (folders of labelled patches).",
    ),
    "data photos": own(
        "data:photos", "PhotosArguments", "Make PatchSets from your own photos, labelled by 3-D reconstruction."
    ),
    "data views": own(
        "data:views", "ViewsArguments", "Make PatchSets from single images, labelled by synthetic warps."
    ),
    "data hpatches": own(
        "data:hpatches", "StripsArguments", "Cut HPatches strips from image sequences with homographies."
    ),
    "data pairs": own("data:pairs", "PairsArguments", "Draw labelled test pairs for PatchSets."),
    "data demo": own("data:demo", "DemoArguments", "Write the demo PatchSets to disk."),
    "data export": own("data:export", "ExportArguments", "Write a PatchSet in the original PhotoTour format."),
    "export onnx": own("export:onnx", "OnnxArguments", "Export weights to ONNX, for use without torch."),
    "export weights": own(
        "export:weights",
        "WeightsArguments",
        "Export weights to share: one file or a Hugging Face folder, in half precision.",
    ),
    "export bundler": own("export:bundler", "BundlerArguments", "Export a sparse model to Bundler's format."),
    "export openmvg": own(
        "export:openmvg", "OpenMVGArguments", "Export features and verified matches to OpenMVG's format."
    ),
    "export imc": own(
        "export:imc", "ImcArguments", "Export features and matches to the layout of the Image Matching Challenge."
    ),
    "app": own("app:main", "AppArguments", "Match images, explore the loss and watch training in the browser."),
    "doctor": own(
        "doctor:main",
        "DoctorArguments",
        "Show versions, processor, kernels, extras and GPU, with advice on what is missing.",
    ),
    "completion": own(
        "completion:main",
        "CompletionArguments",
        "Print a script that completes commands and options in bash, zsh or fish.",
    ),
}


def main(
    arguments: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS, program: str = "sdgmnet"
) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return dispatch(words, commands, program)
    except InputError as error:
        return fail(str(error), 2)
    except Stopped as stopped:
        return fail(str(stopped), stopped.exit_code)
    except KeyboardInterrupt:
        return fail("interrupted.", 130)
    except MemoryError as error:
        return fail(f"out of memory ({str(error) or 'the input is too large'}).", 2)
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            target = error.filename or "a file"
            return fail(f"the disk is full while writing {target}: free some space and run the command again.", 2)
        if error.filename is not None:
            return fail(f"{error.filename}: {error.strerror}.", 2)
        raise


def dispatch(words: list[str], commands: Mapping[str, Command], program: str) -> int:
    if words[:1] == ["help"]:  # help match is match --help
        words = [*words[1:], "--help"]
    if not words or words[0] in HELP:
        print(overview(commands, program))
        return 0
    if words[0] in VERSION:
        print(__version__)
        if "--verbose" in words[1:]:
            print(load("sdgmnet.doctor:engine_line")())
        return 0
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in commands and len(words) >= length:
            require_one_process(name)
            return call(name, commands[name], words[length:], program)
    group = {name: command for name, command in commands.items() if name.startswith(f"{words[0]} ")}
    if not group:
        raise InputError(f"there is no command {words[0]!r}{similar(words[0], commands, program)}")
    if len(words) == 1:
        print(overview(group, program), file=sys.stderr)
        return 2
    if words[1] in HELP:
        print(overview(group, program))
        return 0
    name = " ".join(words[:2])
    raise InputError(f"there is no command {name!r}{similar(name, group, f'{program} {words[0]}')}")


def call(name: str, command: Command, words: list[str], program: str) -> int:
    with said_once():
        verbosity, words = split_verbosity(words)
    with printing(verbosity):
        if command.options == COMMON:
            run = load(command.place)
            arguments = parse(load(COMMON), words, f"{program} {name}", description=run.__doc__)
            announce(verbosity)
            load("sdgmnet.commands.evaluate:run_benchmark")(name.removeprefix("evaluate "), run, arguments)
            return 0
        with said_once():
            arguments = parse(load(command.options), words, f"{program} {name}")
            if getattr(arguments, "out", None) is not None:
                require_writable(arguments.out)
        announce(verbosity)
        return load(command.place)(arguments) or 0


@contextmanager
def printing(verbosity: Verbosity) -> Iterator[None]:
    """Progress and remarks as --quiet and --verbose say."""
    if not (verbosity.quiet or verbosity.verbose):
        yield
        return
    from sdgmnet.report import STDERR, print_aside

    STDERR.quiet, began = verbosity.quiet, time.monotonic()
    try:
        yield
        print_aside(f"{time.monotonic() - began:.1f} s in all.")
    except (InputError, OSError, MemoryError):
        if verbosity.verbose:
            traceback.print_exc()
        raise
    finally:
        STDERR.quiet = False


def announce(verbosity: Verbosity) -> None:
    if verbosity.verbose:
        load("sdgmnet.report:print_aside")(f"sdgmnet {__version__}. {load('sdgmnet.doctor:engine_line')()}")


def similar(name: str, commands: Mapping[str, Command], program: str) -> str:
    """The end of an error message: commands that start with the name, or are spelt nearly like it, or the way to the list."""
    from difflib import get_close_matches

    near = [one for one in commands if one.startswith(name)]
    if not near:
        last_words = {one.split()[-1]: one for one in commands}
        near = [last_words[word] for word in get_close_matches(name.split()[-1], last_words)]
    return f"; did you mean {' or '.join(near)}?" if near else f"; {program} --help lists all commands."


def require_one_process(name: str) -> None:
    """Several processes of any other command would do the same work and write the same files."""
    if name in MULTI_PROCESS or "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    with said_once():
        raise InputError(f"sdgmnet {name} runs in one process: use torchrun only for {', '.join(MULTI_PROCESS)}.")


@contextmanager
def said_once() -> Iterator[None]:
    """Of the processes of torchrun, which all get the same words, rank 0 prints the error."""
    try:
        yield
    except InputError:
        if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0":
            raise
        time.sleep(2)  # torchrun kills all ranks as soon as one has ended: rank 0 prints the error first
        raise Stopped from None


def overview(commands: Mapping[str, Command], program: str) -> str:
    width = max(len(name) for name in commands)
    lines = [f"  {name:{width}}  {command.summary}" for name, command in commands.items()]
    head, foot = f"usage: {program} COMMAND [OPTIONS]", f"{program} COMMAND --help shows the options of a command."
    return "\n".join([head, "", *lines, "", foot])


def fail(sentence: str, code: int) -> int:
    if sentence:  # of several ranks, most have nothing to print
        print(f"sdgmnet: {sentence}", file=sys.stderr)
    return code
