"""Mutations of valid files, reproducible: each is drawn from the given generator.

Bytes are flipped, cut, spliced and overwritten with awkward numbers. Formats with checksums or syntax are parsed first,
changed inside, and written again with valid checksums.
"""

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

Mutate = Callable[[bytes, Random], bytes]

NUMBERS = (
    0, 1, 2, 3, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 60_000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**62, 2**63, 2**64 - 1,
)  # fmt: skip
WORDS = (
    b"-1", b"0", b"nan", b"inf", b"-inf", b"1e999", b"1e308", b"-1e-320", b"60000", b"2147483648", b"9223372036854775807",
    b"9223372036854775808", b"99999999999999999999999999", b"1.5", b"0x10", b"1_0", b"", b"\xd9\xa3", b"--", b"\x00",
)  # fmt: skip
VALUES = (
    None, True, False, -1, 0, 1.5, float("nan"), float("inf"), 1e308, 2**31, 2**63, 2**70, 10**400, "", "\0", "../../escape",
    "a" * 5000, [], {}, [[]], [None], {"": {}}, "\ud800",
)  # fmt: skip
FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, 1e-42, -0.0, 1e9)


def mutate_bytes(content: bytes, rng: Random) -> bytes:
    """One to four changes of bytes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice((_flip, _flip, _cut, _splice, _number, _number, _repeat, _remove, _noise, _word, _float))(data, rng)
    return bytes(data)


def _place(data: bytearray, rng: Random) -> int:
    """Anywhere, half of the time near the beginning, where headers are."""
    return rng.randrange(min(len(data), 128) if rng.random() < 0.5 else len(data)) if data else 0


def _flip(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 8))):
        if data:
            data[_place(data, rng)] ^= 1 << rng.randrange(8)


def _cut(data: bytearray, rng: Random) -> None:
    del data[rng.choice((0, _place(data, rng), max(0, len(data) - rng.randrange(1, 20)))) :]


def _splice(data: bytearray, rng: Random) -> None:
    """Copy a block to another place, overwriting or inserting."""
    start, target = _place(data, rng), _place(data, rng)
    block = data[start : start + rng.choice((1, 4, 16, 200))]
    data[target : target + (len(block) if rng.random() < 0.5 else 0)] = block


def _number(data: bytearray, rng: Random) -> None:
    """Set a field of 1 to 8 bytes to an edge value, in either byte order."""
    size, place = rng.choice((1, 2, 4, 4, 8)), _place(data, rng)
    value = rng.choice(NUMBERS) % (1 << 8 * size)
    data[place : place + size] = value.to_bytes(size, rng.choice(("little", "big")))


def _float(data: bytearray, rng: Random) -> None:
    place = _place(data, rng) // 4 * 4
    data[place : place + 4] = struct.pack("<f", rng.choice(FLOATS))


def _repeat(data: bytearray, rng: Random) -> None:
    start = _place(data, rng)
    data[start:start] = data[start : start + rng.choice((1, 8, 64))] * rng.choice((2, 30))


def _remove(data: bytearray, rng: Random) -> None:
    start = _place(data, rng)
    del data[start : start + rng.choice((1, 1, 4, 100))]


def _noise(data: bytearray, rng: Random) -> None:
    place, size = _place(data, rng), rng.choice((1, 4, 32))
    data[place : place + size] = rng.randbytes(size)


def _word(data: bytearray, rng: Random) -> None:
    """Replace a number in text by an unusual one, or a separator by another."""
    found = list(re.finditer(rb"-?[0-9][0-9.eE+-]*" if rng.random() < 0.8 else rb"[\s,;&:]", bytes(data[:4096])))
    if found:
        hit = rng.choice(found)
        data[hit.start() : hit.end()] = rng.choice(WORDS)


def mutate_json(content: bytes, rng: Random) -> bytes:
    """Replace a value, drop or add a key; sometimes change bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(content, rng)
    if rng.random() < 0.02:
        return rng.choice((b"[" * 100_000, b'{"a":' * 20_000, b"1" * 10_000, b"[]", b"null", b"3", b'"x"'))
    return json.dumps(changed_value(json.loads(content), rng)).encode("utf-8", "surrogatepass")


def changed_value(value: Any, rng: Random) -> Any:
    inner: list[Any] = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    if not inner or rng.random() < 0.15:
        return rng.choice(VALUES)
    key, value = rng.choice(inner), value.copy()
    kind = rng.random()
    if kind < 0.1:
        del value[key]
    elif kind < 0.2 and isinstance(value, dict):
        value[f"{key}x"] = rng.choice(VALUES)
    else:
        value[key] = changed_value(value[key], rng)
    return value


def mutate_lines(content: bytes, rng: Random) -> bytes:
    """Drop, repeat or change lines of text."""
    if rng.random() < 0.5:
        return mutate_bytes(content, rng)
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place, rng.choice(lines))
    elif kind == 2:
        words = lines[place].split(b" ")
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        lines[place] = b" ".join(words)
    else:
        lines[place] = mutate_bytes(lines[place], rng)
    return b"\n".join(lines)


def mutate_json_lines(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    place = rng.randrange(len(lines) - 1)
    lines[place] = mutate_json(lines[place], rng)
    return b"\n".join(lines)


def mutate_npy(content: bytes, rng: Random) -> bytes:
    """Change the header of a .npy file as text, with a valid length; or change bytes."""
    length = int.from_bytes(content[8:10], "little")
    if rng.random() < 0.4 or len(content) < 10 + length:
        return mutate_bytes(content, rng)
    header = content[10 : 10 + length].decode("latin1")
    changes: tuple[Callable[[str], str], ...] = (
        lambda text: re.sub(r"\d+", lambda _: str(rng.choice(NUMBERS)), text, count=rng.choice((1, 2))),
        lambda text: text.replace("False", "True"),
        lambda text: re.sub(r"'descr': [^,]*,", f"'descr': {rng.choice(DTYPES)},", text),
        lambda text: re.sub(r"\(.*\)", rng.choice(SHAPES), text),
        lambda text: text.replace("shape", rng.choice(("shap", "shape shape", ""))),
    )
    header = rng.choice(changes)(header).rstrip() + "\n"
    coded = header.encode("latin1", "replace")
    return content[:8] + len(coded).to_bytes(2, "little") + coded + content[10 + length :]


DTYPES = (
    "'|O'", "'<f8'", "'|u1'", "'<i8'", "'|S0'", "'<U9'", "'<M8[s]'", "'|V8'", "[('image', '<i8')]", "[('image', 'O')]",
    "'<c16'",
    "'|b1'", "'>i4'", "'<f2'",
)  # fmt: skip
SHAPES = (
    "()", "(0,)", "(-1,)", "(1,)", "(0, 64, 64)", "(4611686018427387904, 64, 64)", "(2, 3)", "(3, 64, 64, 1)", "(1000000000,)",
    "(0, 0, 9223372036854775807)",
)  # fmt: skip


def mutate_zip(content: bytes, rng: Random, inside: Mutate = mutate_bytes) -> bytes:
    """Change one member and write the archive again with valid checksums; or change bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    place = rng.randrange(len(members))
    name, data = members[place]
    kind = rng.random()
    if kind < 0.1:
        del members[place]
    elif kind < 0.2:
        members[place] = (rng.choice(("../escape", "/tmp/escape", name + "x", "a" * 300)), data)
    else:
        members[place] = (name, inside(data, rng))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, archive.compression)  # without the present time
    return written.getvalue()


def mutate_npz(content: bytes, rng: Random) -> bytes:
    return mutate_zip(content, rng, mutate_npy)


def mutate_safetensors(content: bytes, rng: Random) -> bytes:
    """Change the JSON header or the card in it, with a valid length; or change bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(content, rng)
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    card = header.get("__metadata__", {}).get("card")
    if card is not None and rng.random() < 0.5:
        header["__metadata__"]["card"] = mutate_json(card.encode(), rng).decode("utf-8", "replace")
    elif rng.random() < 0.8:
        header = changed_value(header, rng)
    else:
        place = rng.randrange(len(body) // 4) * 4
        body = body[:place] + struct.pack("<f", rng.choice(FLOATS)) + body[place + 4 :]
    try:
        coded = json.dumps(header, allow_nan=True).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError):
        return mutate_bytes(content, rng)
    return len(coded).to_bytes(8, "little") + coded + body


def mutate_png(content: bytes, rng: Random) -> bytes:
    """Change, drop or repeat a chunk, with valid checksums; or change bytes."""
    if rng.random() < 0.3 or content[:4] != b"\x89PNG":
        return mutate_bytes(content, rng)
    chunks, place = [], 8
    while place + 12 <= len(content):
        size = int.from_bytes(content[place : place + 4], "big")
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + size]))
        place += 12 + size
    number = rng.randrange(len(chunks))
    kind = rng.random()
    if kind < 0.15:
        chunks.insert(number, rng.choice(chunks))
    elif kind < 0.3:
        del chunks[number]
    elif kind < 0.6 and chunks[0][0] == b"IHDR":
        sides = struct.pack(">II", *(rng.choice((0, 1, 65, 60_000, 0x7FFFFFFF)) for _ in range(2)))
        chunks[0] = (b"IHDR", sides + (chunks[0][1][8:] if rng.random() < 0.7 else rng.randbytes(5)))
    else:
        name, data = chunks[number]
        data = zlib.compress(mutate_bytes(zlib.decompress(data), rng)) if name == b"IDAT" else mutate_bytes(data, rng)
        chunks[number] = (name, data)
    return content[:8] + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def mutate_h5(content: bytes, rng: Random) -> bytes:
    """Replace a data set by another type, size or link; or change bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(content, rng)
    import h5py

    held = io.BytesIO(content)
    with h5py.File(held, "a") as file:
        found: list[str] = []
        file.visit(found.append)
        name = rng.choice(found)
        del file[name]
        kind = rng.randrange(8)
        if kind == 0:
            file[name] = h5py.ExternalLink("/etc/passwd", "/")
        elif kind == 1:
            file[name] = h5py.SoftLink(rng.choice(("/nowhere", f"/{name}", "/")))
        elif kind == 2:
            file.create_group(name)
        elif kind == 3:
            file.create_dataset(name, shape=(2**40,), dtype="<f4", chunks=(1024,))
        elif kind == 4:
            file.create_dataset(name, data=rng.choice(("text", b"bytes", 1.5, [b"a", b"b"])))
        elif kind == 5:
            file.attrs["sdgmnet"] = rng.choice(("", "[]", "{", "null", '{"features": 3}', "x" * 1000))
        elif kind == 6:
            shape = rng.choice(((), (0,), (3,), (2, 2), (128, 5), (5, 128), (3, 4, 5)))
            kinds = ("<f4", "<f8", "<i2", "|u1", "<u8", "?", "<c8")
            file.create_dataset(name, data=np.full(shape, rng.choice((0, 1, 7)), dtype=rng.choice(kinds)))
        else:
            file.create_dataset(name, data=np.full((5, 2), rng.choice(FLOATS), dtype="<f4"))
    return held.getvalue()
