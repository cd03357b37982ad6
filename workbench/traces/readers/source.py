"""A file to read: its bytes piece by piece, unpacked if they are gzip; and a row of the ledger."""

import tarfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from isal import isal_zlib

from ...base.units import GIB, MIB, format_bytes

MAX_BYTES = 8 * GIB  # of one unpacked file: a larger one may be a decompression bomb
MAX_TEXT = 64 * MIB  # of a table of timed collectives or totals
CHUNK_BYTES = 2**18  # small enough to stay in the processor's caches
HEAD_BYTES = 2**18
_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"  # the byte order mark of UTF-8, which some editors write


def entry(what: str, n_events: int, why: str = "", *, kept: bool = True, warn: bool = False):
    """Return a LEDGER row without its file; `warn` also warns the user."""
    return {"what": what, "n_events": n_events, "kept": kept, "why": why, "warn": warn}


class Source:
    """One file, or one member of an archive, which can be read once.

    path : the file, or the archive of a member
    file : name in messages
    head : first 256 KiB, unpacked, from which the format is detected
    unread : why it cannot be read, or ""
    damage : damage of the compression or the archive, complete after reading
    keep : "all", or "kernels" to leave out host rows
    """

    keep = "all"
    unread = ""

    def __init__(self, path: Path, stream=None, member: str = ""):
        self.path = Path(path)
        self.file = f"{path}::{member}" if member else str(path)
        self.name = member.rsplit("/", 1)[-1] or self.path.name
        self.damage: list[str] = []
        self._lead: list[bytes] = []
        self._rest = _pieces(self.path, stream, self.damage)

    @cached_property
    def head(self) -> bytes:
        while sum(map(len, self._lead)) < HEAD_BYTES and (piece := next(self._rest, None)):
            self._lead.append(piece)
        return b"".join(self._lead)[:HEAD_BYTES]

    def chunks(self) -> Iterator[bytes]:
        """Yield the unpacked bytes from the start. Raises ValueError beyond MAX_BYTES."""
        size = 0
        while piece := self._lead.pop(0) if self._lead else next(self._rest, None):
            size += len(piece)
            if size > MAX_BYTES:
                limit = format_bytes(MAX_BYTES)
                raise ValueError(f"{self.file}: unpacks to more than the limit of {limit}")
            yield piece

    def text(self) -> str:
        """Return the file as text; bytes that are not UTF-8 are replaced. See MAX_TEXT."""
        return self.whole("a table", MAX_TEXT).decode(errors="replace")

    def whole(self, what: str, limit: int) -> bytes:
        """Return the whole file. Raises ValueError, naming what it is, above the limit in bytes."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > limit:
                most = format_bytes(limit)
                raise ValueError(f"{self.file}: {what} of more than the limit of {most}")
        return bytes(data)


def _pieces(path: Path, stream, damage: list[str]) -> Iterator[bytes]:
    """Yield the unpacked bytes. Not a method: a half-read source then closes its file at once."""
    with stream or path.open("rb") as stream:
        try:
            first = stream.read(2**18)
            packed = first[:2] == _GZIP
            pieces = _gunzip(first, stream, damage) if packed else _plain(first, stream)
            yield next(pieces, b"").removeprefix(_MARK)
            yield from pieces
        except (tarfile.TarError, EOFError) as error:
            damage.append(f"the archive is cut or damaged here ({error})")


def _plain(first: bytes, stream) -> Iterator[bytes]:
    while first:
        yield first
        first = stream.read(CHUNK_BYTES)


def _gunzip(first: bytes, stream, damage: list[str]) -> Iterator[bytes]:
    """Yield what a gzip stream contains, member by member, up to any damage."""
    unpacker, size, why = isal_zlib.decompressobj(wbits=31), 0, ""
    try:
        packed = first
        while packed:
            if unpacker.eof:
                if not packed.strip(b"\0"):  # padding after the last member
                    break
                unpacker = isal_zlib.decompressobj(wbits=31)
            piece = unpacker.decompress(packed, CHUNK_BYTES)
            size += len(piece)
            if piece:
                yield piece
            packed = unpacker.unconsumed_tail or unpacker.unused_data or stream.read(2**18)
        why = "" if unpacker.eof else "the file ends too early"
    except isal_zlib.error as error:
        why = str(error)
    if why:
        cut = f"the gzip data are cut or damaged ({why}): read {format_bytes(size)}"
        damage.append(f"{cut}. Copy or record the file again for the rest")
