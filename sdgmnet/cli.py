"""The command line: one function a command. Bad input ends in one sentence and exit code 2, never in a traceback."""

import errno
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from sdgmnet.errors import InputError, Stopped


class Command(NamedTuple):
    place: str  # module:function, imported only when the command is called, so that help is quick
    summary: str


SHARED_BY_RANKS = ("train", "describe")  # what torchrun may start

COMMANDS: dict[str, Command] = {
    "demo": Command(
        "sdgmnet.commands.demo:main",
        "Match a pair of images, then train for a few minutes and look at what was learned.",
    ),
    "describe": Command("sdgmnet.commands.describe:main", "Keypoints and descriptors of images, as an h5 file."),
    "match": Command("sdgmnet.commands.match:main", "Match two images and draw it, or all pairs of a folder."),
    "reconstruct": Command(
        "sdgmnet.commands.reconstruct:main", "A 3-D model of what photos show, as a COLMAP workspace."
    ),
    "train": Command("sdgmnet.commands.train:main", "Train a descriptor: Algorithm 1 with the paper's settings."),
    "evaluate phototour": Command(
        "sdgmnet.commands.evaluate:phototour", "FPR@95 on labelled pairs of patches (Table 1)."
    ),
    "evaluate matching": Command(
        "sdgmnet.commands.evaluate_matching:main",
        "Matching of whole images with known homographies (Fig. 5, MMA, homographies).",
    ),
    "evaluate hpatches": Command(
        "sdgmnet.commands.evaluate_hpatches:main",
        "HPatches: patch verification, image matching, patch retrieval (Fig. 4).",
    ),
    "evaluate reconstruction": Command(
        "sdgmnet.commands.evaluate_reconstruction:main",
        "What COLMAP reconstructs from each descriptor's matches (Table 5).",
    ),
    "data phototour": Command(
        "sdgmnet.commands.data:phototour", "UBC PhotoTour: convert original folders, or fetch them."
    ),
    "data photos": Command(
        "sdgmnet.commands.data:photos", "Own photos: reconstruct each scene and cut the patches of its points."
    ),
    "data views": Command(
        "sdgmnet.commands.data_views:main", "Any images: synthetic views of them, with perfect labels."
    ),
    "data hpatches": Command(
        "sdgmnet.commands.data_hpatches:main",
        "Image sequences with homographies: strips of patches as HPatches has them.",
    ),
    "data pairs": Command("sdgmnet.commands.data:pairs", "Draw balanced test pairs for PatchSets."),
    "data demo": Command("sdgmnet.commands.data:demo", "Write the embedded patch sets to disk."),
    "data export": Command("sdgmnet.commands.data:export", "Write a PatchSet as an original PhotoTour folder."),
    "export onnx": Command("sdgmnet.commands.export:onnx", "Write weights as ONNX, for programs without torch."),
    "export weights": Command(
        "sdgmnet.commands.export:weights",
        "Write weights to share: one file or a Hugging Face folder, in half precision.",
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
        return fail(f"there is not enough memory ({str(error) or 'for what the input needs'}).", 2)
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return fail(
                f"the disk is full while writing {error.filename or 'a file'}: free some space and run again.", 2
            )
        if error.filename is not None:
            return fail(f"{error.filename}: {error.strerror}.", 2)
        raise


def dispatch(words: list[str], commands: Mapping[str, Command], program: str) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview(commands, program))
        return 0
    if words[0] == "--version":
        from sdgmnet.version import __version__

        print(__version__)
        return 0
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in commands and len(words) >= length:
            _require_one_process(name)
            module, function = commands[name].place.split(":")
            call: Callable[[list[str]], int | None] = getattr(import_module(module), function)
            return call(words[length:]) or 0
    group = [name for name in commands if name.startswith(f"{words[0]} ")]
    if group:
        asked_for_help = len(words) > 1 and words[1] in ("-h", "--help")
        print(
            overview({name: commands[name] for name in group}, program),
            file=sys.stdout if asked_for_help else sys.stderr,
        )
        if len(words) > 1 and not asked_for_help:
            near = [name for name in group if name.startswith(f"{words[0]} {words[1]}")]
            meant = f"; did you mean {' or '.join(near)}?" if near else ": these are all that begin so."
            raise InputError(f"there is no command '{words[0]} {words[1]}'{meant}")
        return 0 if asked_for_help else 2
    raise InputError(f"there is no command {words[0]!r}; {program} --help lists them.")


def _require_one_process(name: str) -> None:
    """Several processes of any other command would do the same work and write the same files."""
    if name in SHARED_BY_RANKS or "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    if os.environ.get("RANK", "0") != "0":
        time.sleep(2)  # torchrun ends all ranks as soon as one has ended: the first must have spoken
        raise Stopped
    names = " and ".join(SHARED_BY_RANKS)
    raise InputError(f"sdgmnet {name} runs in one process: torchrun is for {names}.")


def overview(commands: Mapping[str, Command], program: str) -> str:
    width = max(len(name) for name in commands)
    lines = [f"  {name:{width}}  {command.summary}" for name, command in commands.items()]
    return "\n".join(
        [f"usage: {program} COMMAND [OPTIONS]", "", *lines, "", f"{program} COMMAND --help explains a command."]
    )


def fail(sentence: str, code: int) -> int:
    if sentence:  # of several ranks, often only the first has something to say
        print(f"sdgmnet: {sentence}", file=sys.stderr)
    return code
