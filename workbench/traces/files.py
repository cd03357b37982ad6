"""Which files a path names: a file, a folder, a pattern, a list of them, an archive's members."""

import glob
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..base.units import format_bytes
from .readers import source as sources
from .readers.source import Source

MAX_MEMBERS = 100_000  # of one archive


def existing(path) -> Path:
    """The path, or FileNotFoundError with where it was looked for."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(f"expected a path as text or pathlib.Path, got {type(path).__name__}")
    path = Path(path)
    if not path.exists():
        where = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
        raise FileNotFoundError(f"{path}: no such file or folder{where}. Check the path")
    return path


def one(path) -> Path:
    """The one file that a path or pattern names, else ValueError."""
    found, folder = named(path)
    if folder is not None or len(found) != 1:
        what = "a folder" if folder else f"{len(found)} files"
        raise ValueError(f"{path}: expected one file, got {what}. Name the file")
    return found[0]


def named(path) -> tuple[list[Path], Path | None]:
    """The files that a path, a pattern such as `runs/*.json.gz` or a list names, and the folder.

    The folder is None unless the path is one. Raises FileNotFoundError when there is nothing.
    """
    if isinstance(path, list | tuple):
        files = [file for each in path for file in named(each)[0]]
        if not files:
            raise ValueError("expected at least one file, got an empty list")
        return files, None
    if (
        isinstance(path, str | os.PathLike)
        and glob.has_magic(str(path))
        and not Path(path).exists()
    ):
        found = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
        if not found:
            raise FileNotFoundError(f"{path}: no file matches (looked in {Path.cwd()})")
        return found, None
    path = existing(path)
    if path.is_file():
        return [path], None
    return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")), path


def sources_of(path: Path) -> Iterator[Source]:
    """The file itself, or the members of an archive one after another; nothing is written to disk.

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
    """A member without content of its own: followed, a link might lead out of the archive."""
    source = Source(path, io.BytesIO(), member.name)
    what = f"a link to {member.linkname}" if member.linkname else "a device or pipe"
    source.unread = f"{what}, no file: not read"
    return source
