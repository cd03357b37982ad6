"""Decoded traces in Parquet files, one per trace, so that opening a trace again decodes nothing.

The name of a file is the hash of all that its table depends on: the bytes of the trace, the code of
base/ and traces/, and the caller's options. In front of the footer, where Parquet readers do not
look, is a hash of the file's own bytes; a damaged file counts as missing and is never parsed.
"""

import hashlib
import json
import os
import uuid
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import refuse

_FIELD = "workbench"  # of the Parquet file's metadata: as JSON what is not a column
_MAGIC, _DIGEST_BYTES = b"PAR1", 32
_ROWS = 2**14  # of a batch while reading: fits the processor's caches


def key_of(path: Path, *parts: str) -> str:
    """Return the name of a trace's cached form: 64 hex digits that differ after any change.

    sha256 of the file's content, the code, and `parts`, the options of reading. Raises OSError if
    the file cannot be read.
    """
    with Path(path).open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashlib.sha256(json.dumps([reader_version(), content, *parts]).encode()).hexdigest()


@cache
def reader_version() -> str:
    """Return the sha256 of the source of base/ and traces/: changed code finds nothing cached."""
    package, version = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(p for room in ("base", "traces") for p in (package / room).rglob("*.py")):
        text = path.read_bytes()
        version.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return version.hexdigest()


def fetch(folder: Path, key: str) -> tuple[pd.DataFrame, dict, list[dict]] | None:
    """Return what `store` received for this key, or None if the file is missing or damaged."""
    try:
        data = _path(folder, key).read_bytes()
    except OSError:
        return None
    at = _footer(data)
    if at < _DIGEST_BYTES or data[at - _DIGEST_BYTES : at] != _digest(data, key, at):
        return None
    try:
        return _decode(data)
    except Exception:  # not damaged, but written by another version of pandas or Arrow
        return None


def store(folder: Path, key: str, table: pd.DataFrame, info: dict, ledger: list[dict]) -> None:
    """Store one trace's rows, the facts its file states, and its LEDGER rows, for `fetch`.

    table : columns of integers, floats or booleans, nullable or not, or categories; its index is
        not stored
    info, ledger : anything that JSON can represent

    Other processes see the complete file or none. Raises ValueError for a column of another type
    and OSError if the folder cannot be written.
    """
    data = _encode(table, {"info": info, "ledger": ledger})
    end = _footer(data)
    at = end + _DIGEST_BYTES
    data = data[:end] + bytes(_DIGEST_BYTES) + data[end:]
    path = _path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(data[:end] + _digest(data, key, at) + data[at:])
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _path(folder: Path, key: str) -> Path:
    return Path(folder) / f"{key}.parquet"


def _footer(data: bytes) -> int:
    """Return where the footer begins, or 0: a Parquet file ends in the footer's size and PAR1."""
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return max(begin, 0) if data[-4:] == _MAGIC else 0


def _digest(data: bytes, key: str, at: int) -> bytes:
    """Return the sha256 of the key and of all bytes but the hash itself, which ends at `at`."""
    digest = hashlib.sha256(key.encode())
    digest.update(memoryview(data)[: at - _DIGEST_BYTES])
    digest.update(memoryview(data)[at:])
    return digest.digest()


def _encode(table: pd.DataFrame, said: dict) -> bytes:
    """Return a Parquet file; a nullable column has a second one that marks missing values."""
    # Imported here: without a cache nothing needs it.
    from arro3.core import Array, Table
    from arro3.io import write_parquet

    columns, kinds = {}, {}
    for name, column in table.items():
        values, kind = _plain(name, column)
        kinds[name] = kind | {"dtype": values[name].dtype.name}
        columns |= {part: np.ascontiguousarray(array) for part, array in values.items()}
    said = json.dumps(said | {"kinds": kinds, "n_rows": len(table)})
    whole = [name for name, array in columns.items() if array.dtype.kind in "iu"]
    stream = BytesIO()
    write_parquet(
        Table.from_pydict({name: Array.from_numpy(array) for name, array in columns.items()}),
        stream,
        compression="zstd(1)",
        dictionary_enabled=False,
        column_encoding=dict.fromkeys(whole, "delta_binary_packed"),
        key_value_metadata={_FIELD: said},
    )
    return stream.getvalue()


def _plain(name: str, column: pd.Series) -> tuple[dict[str, np.ndarray], dict]:
    """Return a column as NumPy arrays, and what restores it from them."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        values = dtype.categories
        kind = {"categories": values.tolist(), "of": str(values.dtype), "ordered": dtype.ordered}
        return {name: column.cat.codes.to_numpy()}, kind
    if isinstance(dtype, np.dtype) and dtype.kind in "iufb":
        return {name: column.to_numpy()}, {}
    if pd.api.types.is_numeric_dtype(dtype) and hasattr(dtype, "numpy_dtype"):
        values = column.to_numpy(dtype.numpy_dtype, na_value=dtype.numpy_dtype.type(0))
        missing = column.isna().to_numpy(np.int8)  # faster to read than bits
        return {name: values, _missing(name): missing}, {"nullable": str(dtype)}
    do = "Leave it out, or make it a category"
    refuse(f"column {name}", "numbers, booleans or categories", found=str(dtype), do=do)


def _missing(name: str) -> str:
    return f"{name} is missing"


def _decode(data: bytes) -> tuple[pd.DataFrame, dict, list[dict]]:
    from arro3.io import read_parquet

    reader = read_parquet(data, batch_size=_ROWS)
    said = json.loads(reader.schema.metadata[_FIELD.encode()])
    parts = _columns(reader, said)
    columns = {}
    for name, kind in said["kinds"].items():
        values = parts[name]
        if "categories" in kind:
            categories = pd.Index(kind["categories"], dtype=kind["of"])
            values = pd.Categorical.from_codes(
                values, dtype=pd.CategoricalDtype(categories, kind["ordered"])
            )
        elif "nullable" in kind:
            array = pd.api.types.pandas_dtype(kind["nullable"]).construct_array_type()
            values = array(values, parts[_missing(name)])
        columns[name] = values
    return pd.DataFrame(columns, copy=False), said["info"], said["ledger"]


def _columns(reader, said: dict) -> dict[str, np.ndarray]:
    """Return each column, filled batch by batch, so that memory never contains two copies."""
    types = {name: kind["dtype"] for name, kind in said["kinds"].items()}
    types |= {_missing(name): "bool" for name, kind in said["kinds"].items() if "nullable" in kind}
    columns = {name: np.empty(said["n_rows"], dtype) for name, dtype in types.items()}
    first = 0
    for batch in reader:
        last = first + batch.num_rows
        for name, part in zip(batch.column_names, batch.columns, strict=True):
            columns[name][first:last] = part.to_numpy()
        first = last
    return columns
