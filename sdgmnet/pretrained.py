"""Weights on disk: .safetensors files that hold a JSON card in their metadata. Loading never runs code.

A source of weights is the name of weights shipped with the package, a .safetensors file, the folder of a training run (its best
weights), or a folder in Hugging Face's layout (config.json and model.safetensors). `download` fetches the last from the Hub.
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdgmnet.errors import InputError
from sdgmnet.storage import new_file, parse_json, reason_of, write_json, write_text

if TYPE_CHECKING:  # the names of shipped weights stand in help texts, which need no torch
    from torch import Tensor

SHIPPED = Path(__file__).parent / "weights"
BEST = "sdgmnet-wide"
ALIAS = "sdgmnet"  # stands for BEST
MODEL = "model.safetensors"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # organisation/name


def shipped_names() -> list[str]:
    """Names of the weights shipped with the package, the best first."""
    found = sorted(path.stem for path in SHIPPED.glob("*.safetensors"))
    return sorted(found, key=lambda name: name != BEST)


def find_weights(source: Path | str) -> Path:
    """The .safetensors file of a source of weights. A folder that has the name of shipped weights is given as ./name."""
    if source in {*shipped_names(), ALIAS}:
        return SHIPPED / f"{BEST if source == ALIAS else source}.safetensors"
    path = Path(source)
    if path.is_dir():
        return path / (MODEL if (path / MODEL).exists() else "best.safetensors")
    return path


def is_hub_name(source: Path | str) -> bool:
    """Whether a source has the form organisation/name of the Hugging Face Hub, and cannot be meant as a path.

    Where a folder with the name of the organisation exists, as in runs/mine, it is a path.
    """
    if not isinstance(source, str) or not HUB_NAME.fullmatch(source) or source.endswith(".safetensors"):
        return False
    return not Path(source).exists() and not Path(source).parent.exists()


def download(name: str, revision: str | None = None) -> Path:
    """model.safetensors of organisation/name on the Hugging Face Hub, or of its local cache. Nothing else is downloaded."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise InputError(
            f"{name} is not a local file or folder, and for the Hugging Face Hub huggingface_hub is not installed: give an "
            "existing path, or pip install 'sdgmnet[hub]'."
        ) from None
    try:
        return Path(hf_hub_download(name, MODEL, revision=revision))
    except Exception as error:  # no network, no such repository or file, a full disk: each fails in its own way
        raise InputError(
            f"{name} is not a local file or folder, and {MODEL} cannot be had from the Hugging Face Hub "
            f"({reason_of(error)}): check the name and the network, or give a local path."
        ) from error


def require_weights(path: Path) -> None:
    """InputError if the file of a source of weights does not exist."""
    if not path.is_file():
        names = ", ".join((ALIAS, *shipped_names()))
        raise InputError(
            f"{path} does not exist: give a .safetensors file, the folder of a finished run, a folder with {MODEL}, "
            f"or the name of shipped weights ({names})."
        )


def read_weights(path: Path) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """Tensors by name, and the card; a file without a card is taken for an SDGMNet."""
    from safetensors import SafetensorError, safe_open

    require_weights(path)
    try:
        with safe_open(path, framework="pt") as file:
            card = parse_json((file.metadata() or {}).get("card", '{"encoder": "sdgmnet"}'))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or 'it is not a regular file'}).") from error
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file, or is incomplete: write or download it again.") from error
    except ValueError as error:
        raise InputError(f"{path}: its card is not valid JSON ({error}): write or download it again.") from error
    if not isinstance(card, dict):
        raise InputError(f"{path}: its card must be a JSON object, not {card!r}.")
    trained_on = card.get("trained_on") or []
    if not isinstance(trained_on, list) or not all(isinstance(one, str) for one in trained_on):
        raise InputError(f"{path}: trained_on in its card must be a list of names, not {trained_on!r}.")
    return tensors, card


def write_weights(
    tensors: dict[str, "Tensor"], path: Path | str, card: dict[str, Any], card_path: Path | None = None
) -> None:
    """Write a .safetensors file with the card inside it, and the card as a readable JSON file next to it."""
    from safetensors.torch import save

    path = Path(path)
    try:
        text = json.dumps(card, allow_nan=False)
    except ValueError as error:
        raise InputError(f"the card of {path} cannot be written as JSON ({error}).") from error
    tensors = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    with new_file(path) as part:
        part.write_bytes(_sort_metadata(save(tensors, metadata={"format": "pt", "card": text})))
    write_json(card_path or path.with_suffix(".json"), card)


def _sort_metadata(content: bytes) -> bytes:
    """Make equal weights equal files: safetensors writes its metadata in random order.

    A file is eight bytes with the length of the header, the header (JSON padded to eight bytes), and the tensors.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    ordered = json.dumps(header, separators=(",", ":")).encode()
    ordered += b" " * (-len(ordered) % 8)
    return len(ordered).to_bytes(8, "little") + ordered + content[8 + length :]


def write_readme(folder: Path, kind: str, card: dict[str, Any]) -> None:
    """README.md for the Hugging Face Hub, from the card, unless the folder has one."""
    if (folder / "README.md").exists():
        return
    known = {"trained on": card.get("trained_on"), "loss": card.get("loss"), "window in sigmas": card.get("window")}
    rows = "".join(f"- {name}: {_listed(value)}\n" for name, value in known.items() if value)
    note = f"\n{card['note']}\n" if card.get("note") else ""
    write_text(folder / "README.md", README.format(kind=kind, rows=rows, note=note))


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


README = """---
library_name: sdgmnet
tags: [local-descriptors, image-matching, {kind}]
---

# {kind}

Weights of a local image descriptor: patches (B, 1, 32, 32) in [0, 1] -> descriptors (B, 128).
{note}
{rows}
```python
from sdgmnet.encoders import {kind}

encoder = {kind}.from_pretrained("ORGANISATION/NAME")  # pip install 'sdgmnet[hub]'; or a local folder
```

config.json has the whole card.
"""
