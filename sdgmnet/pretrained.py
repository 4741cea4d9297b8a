"""Weights on disk: safetensors and a small JSON card. Loading never runs code.

A source of weights is a name of those that ship with the package, a .safetensors file, the folder of a training run (its best
weights), or a folder in Hugging Face's layout (config.json and model.safetensors).
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from sdgmnet.encoders import ENCODERS, Encoder, TFeat
from sdgmnet.errors import InputError
from sdgmnet.storage import new_file, parse_json, require_bounded_zip, write_json

SHIPPED = Path(__file__).parent / "weights"
BEST = "sdgmnet-photos"
ALIAS = "sdgmnet"  # the best of those that ship
MODEL = "model.safetensors"
DROPOUT = 0.3  # of weights whose card does not say


def save_encoder(encoder: Encoder, path: Path | str, card: dict[str, Any], beside: Path | str | None = None) -> None:
    """Write `path` (.safetensors) with the card inside it, and the card again as readable JSON beside it."""
    path = Path(path)
    name = next((name for name, kind in ENCODERS.items() if type(encoder) is kind), None)
    if name is None:
        raise InputError(f"{type(encoder).__name__} is no encoder that can be loaded again: {', '.join(ENCODERS)} are.")
    card = {"encoder": name, "dropout": encoder.dropout, **card}
    try:
        text = json.dumps(card, allow_nan=False)
    except ValueError as error:
        raise InputError(f"the card of {path} cannot be written as JSON ({error}).") from error
    tensors = {key: value.detach().cpu().contiguous() for key, value in encoder.state_dict().items()}
    with new_file(path) as part:
        part.write_bytes(_in_order(save(tensors, metadata={"format": "pt", "card": text})))
    write_json(path.with_suffix(".json") if beside is None else Path(beside), card)


def _in_order(content: bytes) -> bytes:
    """The same safetensors file with its metadata sorted: the library writes them in any order, and equal weights make equal
    files. Eight bytes hold the header's length, the header is JSON padded to eight bytes, the tensors follow."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    ordered = json.dumps(header, separators=(",", ":")).encode()
    ordered += b" " * (-len(ordered) % 8)
    return len(ordered).to_bytes(8, "little") + ordered + content[8 + length :]


def save_folder(encoder: Encoder, folder: Path | str, card: dict[str, Any] | None = None) -> None:
    """Hugging Face's layout: model.safetensors, and the card as config.json."""
    folder = Path(folder)
    if folder.is_file():
        raise InputError(f"{folder} is a file: give a folder.")
    save_encoder(encoder, folder / MODEL, {"library_name": "sdgmnet", **(card or {})}, folder / "config.json")


def shipped_names() -> list[str]:
    """Names of the weights that came with the package, the best one first."""
    found = sorted(path.stem for path in SHIPPED.glob("*.safetensors"))
    return sorted(found, key=lambda name: name != BEST)


def find_weights(source: Path | str) -> Path:
    """The .safetensors file of a shipped name, of a run folder or of a folder in Hugging Face's layout; or the file itself.

    A folder that happens to have a shipped name is reached as ./name.
    """
    if source in {*shipped_names(), ALIAS}:
        return SHIPPED / f"{BEST if source == ALIAS else source}.safetensors"
    path = Path(source)
    if path.is_dir():
        return path / (MODEL if (path / MODEL).exists() else "best.safetensors")
    return path


def load_encoder(source: Path | str = ALIAS) -> tuple[Encoder, dict[str, Any]]:
    """Encoder in eval mode and its card; without a source, the best weights that ship with the package."""
    path = find_weights(source)
    if not path.is_file():
        names = ", ".join(shipped_names())
        raise InputError(
            f"{path} does not exist: give a .safetensors file, the folder of a finished run, a folder with {MODEL}"
            f"{f', or one of the weights that ship with the package ({names})' if names else ''}."
        )
    try:
        with safe_open(path, framework="pt") as file:
            card = parse_json((file.metadata() or {}).get("card", '{"encoder": "sdgmnet"}'))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole safetensors file ({error}): write or fetch it again.") from error
    name = card.get("encoder") if isinstance(card, dict) else None
    trained_on = card.get("trained_on") or [] if isinstance(card, dict) else []
    if not isinstance(trained_on, list) or not all(isinstance(one, str) for one in trained_on):
        raise InputError(
            f"{path}: its card must name the sets it was trained on as a list of names, not {trained_on!r}."
        )
    if not isinstance(name, str) or name not in ENCODERS:
        raise InputError(f"{path} is for the encoder {name!r}; known here: {', '.join(ENCODERS)}.")
    dropout = card.get("dropout", DROPOUT)
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"{path}: its card must give dropout as a rate in [0, 1), not {dropout!r}.")
    try:
        encoder = ENCODERS[name](dropout)
    except InputError as error:
        raise InputError(f"{path}: its card does not fit ({error})") from error
    try:
        encoder.load_state_dict(tensors)  # copies half precision into single
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path} does not fit the encoder {name}: {reason}") from error
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise InputError(f"{path} holds NaN or infinite weights: use another file.")
    return encoder.eval(), card


def load_tfeat(path: Path | str) -> TFeat:
    """TFeat from its authors' file, a torch pickle: only tensors are read from it, no code is run."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{str(path)!r} is not a file: give the published file of TFeat's weights, as in tfeat:FILE.")
    encoder = TFeat()
    try:
        require_bounded_zip(path)
        encoder.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        if not all(torch.isfinite(tensor).all() for tensor in encoder.state_dict().values()):
            raise ValueError("some are NaN or infinite")
    except Exception as error:  # a broken pickle fails in whatever way its bytes lead to
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} does not hold TFeat's weights ({reason}): fetch it again.") from error
    return encoder.eval()
