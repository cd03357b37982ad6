"""A file to read: its bytes piece by piece, unpacked when they are gzip."""

import tarfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from isal import isal_zlib

from ...base.units import GIB, MIB, format_bytes

MAX_BYTES = 8 * GIB  # of one file once unpacked: more is taken for a decompression bomb
MAX_TEXT = 64 * MIB  # of a table of timed collectives or totals
CHUNK_BYTES = 2**18  # small enough to stay in the processor's caches
HEAD_BYTES = 2**18
_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"  # of UTF-8, which some editors put first


class Source:
    """One file, or one member of an archive, to be read once.

    path : where it lies (of a member: the archive)
    file : its name in messages
    head : its first 256 KiB, unpacked, from which its format is told
    unread : why it is not to be read, if so
    damage : what was found wrong with the packing while reading
    keep : "all", or "kernels" when host rows are not wanted
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
        """The unpacked bytes from the start, once. Raises ValueError beyond MAX_BYTES."""
        size = 0
        while piece := self._lead.pop(0) if self._lead else next(self._rest, None):
            size += len(piece)
            if size > MAX_BYTES:
                limit = format_bytes(MAX_BYTES)
                raise ValueError(f"{self.file}: unpacks to more than the limit of {limit}")
            yield piece

    def text(self) -> str:
        """All of it as text, what is not UTF-8 replaced. Raises ValueError beyond MAX_TEXT."""
        return self.whole("a table", MAX_TEXT).decode(errors="replace")

    def whole(self, what: str, limit: int) -> bytes:
        """All of it at once. Raises ValueError, with what it is, beyond the limit in bytes."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > limit:
                most = format_bytes(limit)
                raise ValueError(f"{self.file}: {what} of more than the limit of {most}")
        return bytes(data)


def _pieces(path: Path, stream, damage: list[str]) -> Iterator[bytes]:
    """The unpacked bytes; no method, so that a source let go half read closes its file at once."""
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
    """As much as a gzip stream holds, member by member."""
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
        why = "" if unpacker.eof else "the file ends before its data do"
    except isal_zlib.error as error:
        why = str(error)
    if why:
        cut = f"the gzip data are cut or damaged ({why}): read {format_bytes(size)} of it"
        damage.append(f"{cut}. Copy or record the file again for the rest")
