"""A file to read: its bytes piece by piece, unpacked when they are gzip."""

import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ..units import GIB, format_bytes

MAX_BYTES = 8 * GIB  # of one file once unpacked: more is taken for a decompression bomb
CHUNK_BYTES = 2**20
HEAD_BYTES = 2**18
_GZIP = b"\x1f\x8b"


class Source:
    """One file.

    path : where it lies
    file : the same as text, for messages
    head : its first 256 KiB, unpacked, from which its format is told
    damage : what was found wrong with the packing while reading
    """

    def __init__(self, path: Path):
        self.path, self.file = Path(path), str(path)
        self.damage: list[str] = []

    @cached_property
    def head(self) -> bytes:
        head = bytearray()
        for chunk in self._pieces([]):
            head += chunk
            if len(head) >= HEAD_BYTES:
                break
        return bytes(head[:HEAD_BYTES])

    def chunks(self) -> Iterator[bytes]:
        """The unpacked bytes from the start. Raises ValueError beyond MAX_BYTES."""
        size = 0
        for piece in self._pieces(self.damage):
            size += len(piece)
            if size > MAX_BYTES:
                limit = format_bytes(MAX_BYTES)
                raise ValueError(f"{self.file}: unpacks to more than the limit of {limit}")
            yield piece

    def text(self) -> str:
        """All of it as text; what is not UTF-8 is replaced."""
        return b"".join(self.chunks()).decode(errors="replace")

    def _pieces(self, damage: list[str]) -> Iterator[bytes]:
        with self.path.open("rb") as stream:
            packed = stream.read(2) == _GZIP
            stream.seek(0)
            if packed:
                yield from _gunzip(stream, damage)
            else:
                yield from iter(lambda: stream.read(CHUNK_BYTES), b"")


def _gunzip(stream, damage: list[str]) -> Iterator[bytes]:
    """As much as a gzip file holds, member by member."""
    unpacker, size, why = zlib.decompressobj(wbits=31), 0, ""
    try:
        while packed := unpacker.unconsumed_tail or unpacker.unused_data or stream.read(2**18):
            if unpacker.eof:
                if not packed.strip(b"\0"):  # padding after the last member
                    break
                unpacker = zlib.decompressobj(wbits=31)
            piece = unpacker.decompress(packed, CHUNK_BYTES)
            size += len(piece)
            yield piece
        why = "" if unpacker.eof else "the file ends before its data do"
    except zlib.error as error:
        why = str(error)
    if why:
        cut = f"the gzip data are cut or damaged ({why}): read {format_bytes(size)} of it"
        damage.append(f"{cut}. Copy or record the file again for the rest")
