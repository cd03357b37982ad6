"""The files of a path: a file, a folder, a pattern, a list of them, or an archive's members."""

import glob
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..base.checks import require
from ..base.units import format_bytes
from .readers import source as sources
from .readers.source import Source

MAX_MEMBERS = 100_000  # of one archive


def existing(path) -> Path:
    """Return the path, or raise FileNotFoundError with the folder that was searched."""
    is_path = isinstance(path, str | os.PathLike) and str(path)
    require(is_path, "path", "text or pathlib.Path", path)
    path = Path(path)
    if not path.exists():
        where = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
        raise FileNotFoundError(f"{path}: no such file or folder{where}. Check the path")
    return path


def one(path) -> Path:
    """Return the only file that a path or pattern names, or raise ValueError."""
    found, folder = named(path)
    what = "a folder" if folder else f"{len(found)} files"
    ok = folder is None and len(found) == 1
    require(ok, str(path), "one file", found=what, do="Name the file")
    return found[0]


def named(path) -> tuple[list[Path], Path | None]:
    """Return the files of a path, a pattern (`runs/*.json.gz`) or a list of these, and the folder.

    The folder is None unless the path is one. Raises FileNotFoundError if there is nothing.
    """
    if isinstance(path, list | tuple):
        require(len(path), "path", "at least one file", found="an empty list")
        return [file for each in path for file in named(each)[0]], None
    is_path = isinstance(path, str | os.PathLike)
    if is_path and glob.has_magic(str(path)) and not Path(path).exists():
        found = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
        if not found:
            raise FileNotFoundError(f"{path}: no file matches (looked in {Path.cwd()})")
        return found, None
    path = existing(path)
    if path.is_file():
        return [path], None
    return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")), path


def sources_of(path: Path) -> Iterator[Source]:
    """Yield the file itself, or the members of an archive; nothing is written to disk.

    Raises ValueError for a damaged archive, or one beyond the limits, when that point is reached.
    """
    source = Source(path)
    if source.head[257:262] != b"ustar":
        yield source
        return
    size = 0
    try:
        with tarfile.open(path, "r|*") as archive:
            for count, member in enumerate(archive):
                size += member.size
                if size > sources.MAX_BYTES or count >= MAX_MEMBERS:
                    limits = f"{format_bytes(sources.MAX_BYTES)} and {MAX_MEMBERS:,} members"
                    raise ValueError(f"{path}: an archive beyond the limits of {limits}")
                if member.isfile():
                    yield Source(path, archive.extractfile(member), member.name)
                elif not member.isdir():
                    yield _unread(path, member)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(f"{path}: the archive is cut or damaged: {error}") from None


def _unread(path: Path, member: tarfile.TarInfo) -> Source:
    """Return a member without content; a link is not followed, it may point out of the archive."""
    source = Source(path, io.BytesIO(), member.name)
    what = f"a link to {member.linkname}" if member.linkname else "a device or pipe"
    source.unread = f"{what}, not a file: not read"
    return source
