"""The folder of a run: its files are always complete, so a run continues where it ended."""

import csv
import errno
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch.distributed as dist

from ..base.checks import refuse
from .machine import machine
from .workers import Workers

_PART = "run.json.part"


class Folder:
    """A run's folder: run.json, which has the settings and the machine, and the run's own files.

    path : new, empty, or of a run with the same settings that has not ended; every worker writes
        its own files, on its own disk or a shared one
    settings : what was asked, for run.json, as values of JSON

    .complete is True if nothing is left to do; .notes is the content of run.json.

    Raises ValueError, on every worker, for any other path: also for a folder of other settings, or
    of another number of workers, device or backend.
    """

    def __init__(self, path: str | Path, settings: dict, workers: Workers):
        self.path, self.workers = Path(path), workers
        try:
            settings = json.loads(json.dumps(settings))
        except (TypeError, ValueError) as error:
            refuse("settings", "values of JSON", found=str(error))
        found = [_opened(self.path, settings, workers) if workers.rank == 0 else None]
        if workers.n_workers > 1:
            dist.broadcast_object_list(found, 0, device=workers.device)
        if isinstance(found[0], str):
            raise ValueError(found[0])
        self.complete = found[0].get("complete", False)
        if not self.complete:
            self.notes = {"settings": settings} | machine(workers) | {"complete": False}
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"{self.path}: cannot be made: {error}") from None
            self._write_notes()

    def finish(self, notes: dict) -> Path:
        """Add the results to run.json, and that the run is complete."""
        self.notes |= notes | {"complete": True}
        self.workers.meet()
        self._write_notes()
        return self.path

    def _write_notes(self) -> None:
        if self.workers.rank == 0:
            part = self.path / _PART
            write_text(part, json.dumps(self.notes, indent=2) + "\n")
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
        new = not path.exists() or path.is_dir() and {p.name for p in path.iterdir()} <= {_PART}
        expected = f"{path}: expected an empty folder or one of a run to go on with, got another"
        return {} if new else f"{expected}. Name a new one"
    known = {name: before.get(name) for name in settings}
    known |= {name: notes.get(name) for name in ("world_size", "device", "backend")}
    here = {"world_size": workers.n_workers, "device": workers.device.type}
    for name, value in (settings | here | {"backend": workers.backend}).items():
        if known[name] != value:
            expected = f"{path}: expected a run with {name} {json.dumps(value)}"
            do = "Name a new folder, or ask for the same to go on with it"
            return f"{expected}, got one with {json.dumps(known[name])}. {do}"
    return notes


class Table:
    """A CSV that grows by one row at a time, each on disk before the next is made.

    path : of the file
    columns : its header
    comments : lines above it, the source first
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
        os.replace(part, path)  # the open file gets its new name

    def add(self, row: Iterable) -> None:
        """Write one row; floats (s) to the ns."""
        self._writer.writerow([f"{x:.9f}" if isinstance(x, float) else x for x in row])
        self._file.flush()

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file and return its path, or raise ValueError if it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error}") from None
    return Path(path)
