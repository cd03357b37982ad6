"""The folder of a run: what is in it is complete, so that a run goes on where it ended."""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import torch.distributed as dist

from ..checks import shown
from .machine import machine
from .workers import Workers


class Folder:
    """A run's folder: run.json, which says what was asked and where, and the run's own files.

    path : new, empty, or of a run with the same settings that has not ended; every worker writes
        its own files, on a disk of its own or one that all share
    settings : what was asked, as in run.json; a folder of other settings is refused

    .complete says that nothing is left to do; .notes is what run.json says.

    Raises ValueError, on every worker, for a path that is no such folder.
    """

    def __init__(self, path: str | Path, settings: dict, workers: Workers):
        self.path, self.workers = Path(path), workers
        found = _opened(self.path, settings) if workers.rank == 0 else None
        found = _of_rank_0(found, workers)
        if isinstance(found, str):
            raise ValueError(found)
        self.complete = found.get("complete", False)
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.complete:
            self.notes = {"settings": settings} | machine(workers) | {"complete": False}
            self._write_notes()

    def finish(self, notes: dict) -> Path:
        """Add to run.json what came out, and that the run is complete."""
        self.notes |= notes | {"complete": True}
        self.workers.meet()
        self._write_notes()
        return self.path

    def _write_notes(self) -> None:
        if self.workers.rank == 0:
            part = self.path / "run.json.part"
            part.write_text(json.dumps(self.notes, indent=2) + "\n", encoding="utf-8")
            os.replace(part, self.path / "run.json")


def _opened(path: Path, settings: dict) -> dict | str:
    """Return run.json of a folder to go on with, {} of a new one, or why it is refused."""
    try:
        notes = json.loads((path / "run.json").read_text(encoding="utf-8"))
        before = notes["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            return f"{path} is not an empty folder, nor one of a run to go on with: name a new one"
        return {}
    for name, value in settings.items():
        if before.get(name) != value:
            return (
                f"{path} holds a run with {name} {shown(before.get(name))}, not {shown(value)}: "
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


def rows_of(path: Path) -> pd.DataFrame:
    """Return the whole rows of a table so far, as text; none where there is no file yet."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return pd.DataFrame()
    lines = [line for line in text.split("\n")[:-1] if not line.startswith("#")]
    fields = list(csv.reader(lines))
    whole = [row for row in fields[1:] if len(row) == len(fields[0])]
    return pd.DataFrame(whole, columns=fields[0]) if fields else pd.DataFrame()
