"""Fetching data sets: downloads that resume, archives that stay inside their folder."""

import errno
import http.client
import ipaddress
import lzma
import os
import re
import shutil
import ssl
import stat
import struct
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sdgmnet.data.patchset import PatchSet, is_patchset
from sdgmnet.data.phototour import PATCH_COUNTS, check_patch_count, is_phototour, read_phototour
from sdgmnet.errors import InputError
from sdgmnet.storage import PLAIN, new_folder, read_json, write_json

DEFAULT_MIRROR = "https://cmp.felk.cvut.cz/~mishkdmy/datasets/BrownPhotoTour"
# The archives that do not lie at <name>.zip below the mirror.
ARCHIVE_PLACES = {"notredame": "notredame/notredame.zip"}
UNPACKED_LIMIT = 8 * 1000**3
TIMEOUT = 30.0
RETRIES = 4
RETRY_PAUSE = 1.0
CHUNK = 1 << 16
BUSY = (429, 502, 503, 504)
DROPS = (ConnectionError, TimeoutError, http.client.HTTPException, ssl.SSLEOFError)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError, ValueError, OSError)


def fetch_phototour(
    name: str, root: Path | str, mirror: str = DEFAULT_MIRROR, progress: bool = False, *, strict: bool = True
) -> PatchSet:
    """The PhotoTour subset `name` as a PatchSet in `root`/`name`, downloaded and converted unless it is there already.

    The archive stays in `root`/archives. The archives on the mirror are repacked, so their published checksums do not
    apply: instead the contents are checked, with `strict` down to the published number of patches.
    """
    if name not in PATCH_COUNTS:
        raise InputError(f"{name!r} is not a PhotoTour subset: choose one of {', '.join(PATCH_COUNTS)}.")
    target, archives = Path(root) / name, Path(root) / "archives"
    if is_patchset(target):
        opened = PatchSet.open(target)
        check_patch_count(name, len(opened), target, strict)
        return opened
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} exists but is no PatchSet: remove it, or convert it with sdgmnet data phototour.")
    address = f"{mirror.rstrip('/')}/{ARCHIVE_PLACES.get(name, f'{name}.zip')}"
    archive = fetch(address, archives / f"{name}.zip", progress)
    with tempfile.TemporaryDirectory(dir=archives, prefix=f".{name}.") as scratch:
        unpacked = Path(scratch) / "unpacked"
        unpack_zip(archive, unpacked)
        try:
            return read_phototour(find_phototour(unpacked, name), target, progress, strict=strict, name=name)
        except InputError as error:
            # The unpacked files are gone when this is read: name the archive and the place inside it.
            raise InputError(f"{archive}: {str(error).replace(f'{unpacked}{os.sep}', '')}") from error


def find_phototour(folder: Path, name: str) -> Path:
    """The PhotoTour folder at or below `folder`; archives come with and without a top folder."""
    found = [info.parent for info in sorted(folder.rglob("info.txt")) if is_phototour(info.parent)]
    named = [place for place in found if place.name == name]
    if len(found) != 1 and len(named) != 1:
        raise InputError(
            f"has {len(found)} folders with info.txt and patches0000.bmp instead of one: use another mirror."
        )
    return found[0] if len(found) == 1 else named[0]


def fetch(url: str, target: Path | str, progress: bool = False) -> Path:
    """Download `url` to `target`, which appears only when it is whole; one that is there already is kept as it is.

    What arrived before a failure waits in `<target>.part`, and the next call goes on from there if the server confirms
    that the file is still the same (ETag or Last-Modified, remembered in `<target>.part.json`).
    """
    target = Path(target)
    check_address(url)
    if target.exists():
        return target
    part, note = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _progress_bar(progress) as bar:
            task = bar.add_task(target.name, total=None)
            _fetch_with_retries(url, part, note, lambda done, total: bar.update(task, completed=done, total=total))
        with open(part, "rb+") as whole:
            os.fsync(whole.fileno())
        os.replace(part, target)
        note.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise InputError(f"{part} cannot grow, the disk is full: free some space and run again.") from error
        raise InputError(
            f"{url} cannot be fetched into {target} ({error}): check that its folder is writable."
        ) from error
    return target


def _progress_bar(shown: bool) -> Progress:
    description, size, speed = TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn()
    columns = (description, BarColumn(), size, speed, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not shown)


def _fetch_with_retries(url: str, part: Path, note: Path, report: Callable[[int, int | None], object]) -> None:
    """Retry dropped connections as long as the part grows, and RETRIES times when it does not."""
    furthest, failures = _size(part), 0
    while True:
        try:
            return _fetch_rest(url, part, note, report)
        except urllib.error.HTTPError as error:
            error.close()
            # urllib's own reason can be several lines long.
            problem = f"answers {error.code} ({http.client.responses.get(error.code, 'unknown')})"
            if error.code not in BUSY:
                raise InputError(f"{url} {problem}: check the address or choose another mirror.") from error
        except urllib.error.URLError as error:
            problem = f"cannot be reached ({error.reason})"
            if not isinstance(error.reason, DROPS):
                raise InputError(f"{url} {problem}: check the network and the address.") from error
        except DROPS as error:
            problem = f"broke off ({error})"
        failures = 0 if _size(part) > furthest else failures + 1
        furthest = max(furthest, _size(part))
        if failures > RETRIES:
            raise InputError(f"{url} {problem}, {_size(part)} bytes arrived so far: run again to go on from there.")
        time.sleep(RETRY_PAUSE * 2**failures)


def _fetch_rest(url: str, part: Path, note: Path, report: Callable[[int, int | None], object]) -> None:
    """One request for what is missing from `part`. Raises ConnectionError when the answer ends early."""
    known = _remembered_version(note, url)
    # Without a version to compare, what is there and what would come might belong to two different files.
    have = _size(part) if known else 0
    headers = {"User-Agent": "sdgmnet", "Accept-Encoding": "identity"}
    if known and have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known}
    opener = urllib.request.build_opener(SafeRedirects())
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        if _content_range(error.headers) == (None, have) and version(error.headers) in (None, known):
            return None
        part.unlink()
        return _fetch_rest(url, part, note, report)
    with response:
        start: int | None = 0
        total: int | None = response.length
        if response.status == 206:
            start, total = _content_range(response.headers)
            if have and (start != have or version(response.headers) not in (None, known)):
                # A server that skips If-Range must not make us join two different files.
                part.unlink()
                return _fetch_rest(url, part, note, report)
        if response.status not in (200, 206) or start is None or start not in (0, have):
            raise InputError(f"{url} answers {response.status} without the file: choose another mirror.")
        if total is None and response.length is not None:
            total = start + response.length
        with open(part, "ab" if start else "wb") as stream:
            # After opening: an old part is emptied before it can pass for the version now noted.
            write_json(note, {"url": url, "version": version(response.headers) or (known if start else None)})
            done = _copy(response, stream, start, lambda done: report(done, total))
    if total is not None and done < total:
        raise ConnectionError(f"{done} of {total} bytes came")
    return None


def _copy(response: Any, stream: IO[bytes], done: int, report: Callable[[int], object]) -> int:
    while chunk := response.read(CHUNK):
        stream.write(chunk)
        done += len(chunk)
        report(done)
    return done


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def version(headers: Message) -> str | None:
    """What If-Range may compare: a strong ETag, otherwise the date of the last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _remembered_version(note: Path, url: str) -> str | None:
    try:
        content = read_json(note)
    except InputError:
        return None
    return content.get("version") if isinstance(content, dict) and content.get("url") == url else None


def _content_range(headers: Message) -> tuple[int | None, int | None]:
    """First byte and total size that a Content-Range header gives, None for what it leaves open."""
    found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "").strip())
    if not found:
        return None, None
    return int(found[1]) if found[1] else None, int(found[2]) if found[2] != "*" else None


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to an address that could have been asked for, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        check_address(newurl)
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise InputError(f"{req.full_url} leads on to {newurl}, which is not encrypted: choose another mirror.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_address(url: str) -> None:
    """https everywhere, http only on this machine."""
    try:
        parts = urlsplit(url)
        scheme, host, _ = parts.scheme, parts.hostname or "", parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is not a valid address ({error}).") from error
    if not host or not re.fullmatch(r"[!-~]+", url):
        raise InputError(f"{url!r} is not a valid address: it should look like https://host/path.")
    if scheme != "https" and not (scheme == "http" and is_loopback(host)):
        raise InputError(f"{url} is not an https address: only https is safe to download from.")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unpack_zip(archive: Path | str, folder: Path | str, limit: int = UNPACKED_LIMIT) -> None:
    """Unpack into a new folder, whole or not at all, and never outside it; at most `limit` bytes in total."""
    archive = Path(archive)
    if not archive.is_file():
        raise InputError(f"{archive} does not exist: download it first.")
    with new_folder(folder) as part:
        try:
            with zipfile.ZipFile(archive) as opened:
                check_entries(archive, opened.infolist(), limit)
                for entry in opened.infolist():
                    _unpack_entry(opened, entry, part)
        except InputError:
            raise
        except DAMAGED as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                message = f"{archive} cannot be unpacked, the disk of {folder} is full: free some space."
            else:
                message = f"{archive} is not a whole zip archive ({error}): remove it and download it again."
            raise InputError(message) from error


def check_entries(archive: Path, entries: list[zipfile.ZipInfo], limit: int) -> None:
    """Refuse an archive with any entry that could end up outside the folder, replace another one or fill the disk."""
    seen: set[PurePosixPath] = set()
    for entry in entries:
        problem = entry_problem(entry)
        place = PurePosixPath(entry.filename)
        if not problem and place in seen:
            problem = "occurs twice"
        if problem:
            message = (
                f"{archive} is not safe to unpack, its entry {entry.orig_filename!r} {problem}: use another source."
            )
            raise InputError(message)
        seen.add(place)
    total = sum(entry.file_size for entry in entries)
    if total > limit:
        raise InputError(f"{archive} would unpack to {total} bytes, more than the {limit} allowed: use another source.")


def entry_problem(entry: zipfile.ZipInfo) -> str:
    """Why an entry must not be unpacked; empty when it may be."""
    # Both the name as stored and the one zipfile uses: cut at a zero byte, from a second field, with other separators.
    for name in (entry.orig_filename, entry.filename):
        if "\\" in name or "\0" in name or ":" in name:
            return "has a backslash, colon or zero byte in its name"
        if name.startswith("/"):
            return "has an absolute path"
        if ".." in name.split("/"):
            return "leads out of the folder"
        if not PurePosixPath(name).parts:
            return "has no name"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or device"
    if entry.flag_bits & 1:
        return "is encrypted"
    if entry.compress_type not in PLAIN:  # the others are unpacked all at once, whatever size they say
        return "is packed otherwise than by deflate"
    return ""


def _unpack_entry(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    place = folder / entry.filename
    if entry.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    # "x" refuses names that differ for us but not for the file system, such as upper and lower case.
    with opened.open(entry) as source, open(place, "xb") as written:
        shutil.copyfileobj(source, written, 1 << 20)
