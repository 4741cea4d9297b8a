"""Downloads that resume, and archives that are unpacked safely."""

import http.client
import ipaddress
import os
import re
import shutil
import ssl
import stat
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from sdgmnet.data.patchset import PatchSet, is_patchset
from sdgmnet.data.phototour import PATCH_COUNTS, is_phototour, read_phototour, require_patch_count
from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.storage import PLAIN, is_disk_full, new_folder, read_json, write_json

DEFAULT_MIRROR = "https://cmp.felk.cvut.cz/~mishkdmy/datasets/BrownPhotoTour"
ARCHIVES = {"notredame": "notredame/notredame.zip"}  # those that are not at <name>.zip on the mirror
UNPACKED_LIMIT = 8 * 1000**3
TIMEOUT = 30.0
RETRIES = 4
RETRY_PAUSE = 1.0
CHUNK = 1 << 16
BUSY = (429, 502, 503, 504)
DROPS = (ConnectionError, TimeoutError, http.client.HTTPException, ssl.SSLEOFError)


def fetch_phototour(
    name: str,
    root: Path | str,
    mirror: str = DEFAULT_MIRROR,
    *,
    strict: bool = True,
    on_progress: OnProgress = no_progress,
) -> PatchSet:
    """The PhotoTour subset `name` as a PatchSet in `root`/`name`, downloaded and converted unless it is there already.

    The archive stays in `root`/archives. The mirror has repacked the archives, so their published checksums do not apply.
    Instead the contents are checked, with `strict` including the published number of patches.
    """
    if name not in PATCH_COUNTS:
        raise InputError(f"{name!r} is not a PhotoTour subset: choose one of {', '.join(PATCH_COUNTS)}.")
    target, archives = Path(root) / name, Path(root) / "archives"
    if is_patchset(target):
        opened = PatchSet.open(target)
        require_patch_count(name, len(opened), target, strict)
        return opened
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} is not a PatchSet: remove it, or convert it with sdgmnet data phototour.")
    address = f"{mirror.rstrip('/')}/{ARCHIVES.get(name, f'{name}.zip')}"
    archive = fetch(address, archives / f"{name}.zip", on_progress)
    with tempfile.TemporaryDirectory(dir=archives, prefix=f".{name}.") as scratch:
        unpacked = Path(scratch) / "unpacked"
        unpack_zip(archive, unpacked)
        try:
            # Archives come with and without a top folder.
            found = [info.parent for info in sorted(unpacked.rglob("info.txt")) if is_phototour(info.parent)]
            chosen = found if len(found) == 1 else [folder for folder in found if folder.name == name]
            if len(chosen) != 1:
                raise InputError(f"it has {len(found)} folders with info.txt and patches0000.bmp: use another mirror.")
            return read_phototour(chosen[0], target, strict=strict, name=name, on_progress=on_progress)
        except InputError as error:
            # The unpacked files are removed: name the archive and the path in it.
            raise InputError(f"{archive}: {str(error).replace(f'{unpacked}{os.sep}', '')}") from error


def fetch(url: str, target: Path | str, on_progress: OnProgress = no_progress) -> Path:
    """Download `url` to `target`, which appears only when it is complete; an existing one is kept.

    After a failure the downloaded part stays in `<target>.part`. The next call resumes it if the server confirms that the file
    is still the same (by ETag or Last-Modified, kept in `<target>.part.json`).
    """
    target = Path(target)
    require_safe_address(url)
    if target.exists():
        return target
    part, note = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json")

    def report(done: int, total: int | None) -> None:
        on_progress(f"downloading {target.name} (MB)", done // 10**6, (total or done) // 10**6)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch_with_retries(url, part, note, report)
        with open(part, "rb+") as complete:
            os.fsync(complete.fileno())
        os.replace(part, target)
        note.unlink(missing_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise InputError(f"{part} cannot grow, the disk is full: free some space and run again.") from error
        raise InputError(
            f"{url} cannot be written to {target} ({error}): check that the folder is writable."
        ) from error
    return target


Report = Callable[[int, int | None], None]


def _fetch_with_retries(url: str, part: Path, note: Path, report: Report) -> None:
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
            problem = f"was interrupted ({error})"
        failures = 0 if _size(part) > furthest else failures + 1
        furthest = max(furthest, _size(part))
        if failures > RETRIES:
            raise InputError(f"{url} {problem} after {_size(part)} bytes: run again to resume the download.")
        time.sleep(RETRY_PAUSE * 2**failures)


def _fetch_rest(url: str, part: Path, note: Path, report: Report) -> None:
    """One request for what is missing from `part`. Raises ConnectionError when the answer ends early."""
    try:
        noted = read_json(note)
    except InputError:
        noted = None
    known = noted.get("version") if isinstance(noted, dict) and noted.get("url") == url else None
    # Without a version to compare, the part and the rest might belong to two different files.
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
            return None  # the part is complete
        part.unlink()
        return _fetch_rest(url, part, note, report)
    with response:
        start: int | None = 0
        total: int | None = response.length
        if response.status == 206:
            start, total = _content_range(response.headers)
            if have and (start != have or version(response.headers) not in (None, known)):
                # The server ignored If-Range: this would join two different files.
                part.unlink()
                return _fetch_rest(url, part, note, report)
        if response.status not in (200, 206) or start is None or start not in (0, have):
            raise InputError(f"{url} answers {response.status} without the file: choose another mirror.")
        if total is None and response.length is not None:
            total = start + response.length
        done = start
        with open(part, "ab" if start else "wb") as stream:
            # After opening: an old part is emptied before it can pass for the version now noted.
            write_json(note, {"url": url, "version": version(response.headers) or (known if start else None)})
            while chunk := response.read(CHUNK):
                stream.write(chunk)
                done += len(chunk)
                report(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"{done} of {total} bytes came")
    return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def version(headers: Message) -> str | None:
    """What If-Range may compare: a strong ETag, otherwise the date of the last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _content_range(headers: Message) -> tuple[int | None, int | None]:
    """First byte and total size from a Content-Range header, None where it does not give them."""
    found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "").strip())
    if not found:
        return None, None
    return int(found[1]) if found[1] else None, int(found[2]) if found[2] != "*" else None


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to a safe address, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        require_safe_address(newurl)
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise InputError(f"{req.full_url} redirects to {newurl}, which is not encrypted: choose another mirror.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def require_safe_address(url: str) -> None:
    """InputError unless it is https, or http on this machine."""
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
    """Unpack into a new folder, completely or not at all, and never outside it; at most `limit` bytes in total."""
    archive = Path(archive)
    if not archive.is_file():
        raise InputError(f"{archive} does not exist: download it first.")
    with new_folder(folder) as part:
        try:
            with zipfile.ZipFile(archive) as opened:
                require_safe_entries(archive, opened.infolist(), limit)
                for entry in opened.infolist():
                    place = part / entry.filename
                    (place if entry.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
                    if not entry.is_dir():
                        # "x" refuses names that differ for us but not for the file system, such as upper and lower case.
                        with opened.open(entry) as source, open(place, "xb") as written:
                            shutil.copyfileobj(source, written, 1 << 20)
        except InputError:
            raise
        except Exception as error:  # a damaged archive fails in whatever way its bytes lead to
            if is_disk_full(error):
                message = f"{archive} cannot be unpacked, the disk of {folder} is full: free some space."
            else:
                message = f"{archive} is not a complete zip archive ({error}): remove it and download it again."
            raise InputError(message) from error


def require_safe_entries(archive: Path, entries: list[zipfile.ZipInfo], limit: int) -> None:
    """InputError where an entry could end up outside the folder, replace another one or fill the disk."""
    seen: set[PurePosixPath] = set()
    for entry in entries:
        path = PurePosixPath(entry.filename)
        problem = entry_problem(entry) or ("occurs twice" if path in seen else "")
        if problem:
            name = entry.orig_filename
            raise InputError(f"{archive} is not safe to unpack, its entry {name!r} {problem}: use another source.")
        seen.add(path)
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
    if entry.compress_type not in PLAIN:  # the others are unpacked all at once, whatever size they declare
        return "is not compressed by deflate"
    return ""
