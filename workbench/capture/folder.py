"""The folder of a run: what is in it is complete, so that a run goes on where it ended."""

import csv
import errno
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch.distributed as dist

from .machine import machine
from .workers import Workers

_PART = "run.json.part"


class Folder:
    """A run's folder: run.json, which says what was asked and where, and the run's own files.

    path : new, empty, or of a run with the same settings that has not ended; every worker writes
        its own files, on a disk of its own or one that all share
    settings : what was asked, as JSON takes it, for run.json; a folder of other settings, or of
        another number of workers, device or backend, is refused

    .complete says that nothing is left to do; .notes is what run.json says.

    Raises ValueError, on every worker, for a path that is no such folder.
    """

    def __init__(self, path: str | Path, settings: dict, workers: Workers):
        self.path, self.workers = Path(path), workers
        try:
            settings = json.loads(json.dumps(settings))
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings: expected what JSON takes: {error}") from None
        found = _opened(self.path, settings, workers) if workers.rank == 0 else None
        found = _of_rank_0(found, workers)
        if isinstance(found, str):
            raise ValueError(found)
        self.complete = found.get("complete", False)
        if not self.complete:
            self.notes = {"settings": settings} | machine(workers) | {"complete": False}
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"{self.path}: cannot be made: {error}") from None
            self._write_notes()

    def finish(self, notes: dict) -> Path:
        """Add to run.json what came out, and that the run is complete."""
        self.notes |= notes | {"complete": True}
        self.workers.meet()
        self._write_notes()
        return self.path

    def _write_notes(self) -> None:
        if self.workers.rank == 0:
            part = self.path / _PART
            written(part, json.dumps(self.notes, indent=2) + "\n")
            os.replace(part, self.path / "run.json")


def _opened(path: Path, settings: dict, workers: Workers) -> dict | str:
    """Return run.json of a folder to go on with, {} of a new one, or why it is refused."""
    try:
        notes = json.loads((path / "run.json").read_text(encoding="utf-8"))
        before = dict(notes["settings"])
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            return f"{path}: cannot be read: {error}"
        notes = None
    except (ValueError, KeyError, TypeError):
        notes = None
    if notes is None:
        # A run that was cut before it wrote run.json has left its part.
        if path.exists() and not (
            path.is_dir() and {each.name for each in path.iterdir()} <= {_PART}
        ):
            return f"{path} is not an empty folder, nor one of a run to go on with: name a new one"
        return {}
    asked = settings | {
        "world_size": workers.n_workers,
        "device": workers.device.type,
        "backend": workers.backend,
    }
    for name, value in asked.items():
        found = before.get(name) if name in settings else notes.get(name)
        if found != value:
            return (
                f"{path} holds a run with {name} {json.dumps(found)}, not {json.dumps(value)}: "
                "name a new folder, or ask for the same to go on with it"
            )
    return notes


def _of_rank_0(value, workers: Workers):
    if workers.n_workers < 2:
        return value
    said = [value]
    dist.broadcast_object_list(said, 0, device=workers.device)
    return said[0]


class Table:
    """A CSV that grows by a row at a time, each on the disk before the next is made.

    path : of the file; columns : its header; comments : lines above it, the source first
    before : rows to begin with, such as rows_of(path)
    """

    def __init__(self, path: Path, columns: Sequence[str], comments: Iterable[str], before=None):
        part = path.with_name(path.name + ".part")
        self._file = part.open("w", newline="", encoding="utf-8")
        self._file.writelines(f"# {line}\n" for line in comments)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(columns)
        if before is not None:
            self._writer.writerows(before.itertuples(index=False))
        self._file.flush()
        os.replace(part, path)  # the file stays open: what follows is written to its new name

    def add(self, row: Iterable) -> None:
        """Write one row; s to the ns."""
        self._writer.writerow([f"{x:.9f}" if isinstance(x, float) else x for x in row])
        self._file.flush()

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()


def written(path: str | Path, text: str) -> Path:
    """Write a text file and return its path, or raise ValueError where that cannot be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error}") from None
    return Path(path)
