"""Record a training run: unprofiled iterations, iterations with hooks, a trace."""

import contextlib
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from ..base.checks import checked, instance, integer, require
from ..base.tables import rows_of
from .apply import messages_of
from .folder import Folder, Table
from .hooks import check_trained, ready_marks, sizes, trained
from .plans import grouped, in_order, write_messages
from .training import PROFILER_WARM_UP, Times, Training, traced
from .workers import Workers, current
from .workloads import Workload

_WARM_UP = 3  # iterations; DDP regroups its buckets after the first
_TIMES = ("kind", "iteration", *Times._fields)
_READY = ("iteration", "name", "nbytes", "ready_s")
_UNITS = {
    "iteration_s": "seconds on rank 0's clock: unprofiled, with hooks, with hooks and profiler",
    "gradient_bytes": "bytes of all gradients as they are reduced",
    "load_average": "runnable processes over the minute before the run",
    "gradients.csv": "nbytes in bytes; ready_s (median), low_s and high_s (quartiles) in seconds "
    "since backward began, of the iterations with hooks and without the profiler; n_iterations 0 "
    "for a parameter without a gradient",
    "gradients_rank*.csv": "of the iterations in the trace, by hooks: nbytes in bytes; ready_s in "
    "seconds since backward began",
    "ready_rank*.csv": "the same, of the iterations with hooks and without the profiler",
    "iterations_rank*.csv": "seconds; data, forward, backward and update on the device's clock",
    "rank*.json.gz": "Chrome trace, times in microseconds",
}


@checked(
    work=instance(Workload, "a workbench.capture.Workload"),
    iterations=integer(),
    hooked=integer(0),
    profiled=integer(0),
)
def record(
    work: Workload,
    folder: str | Path,
    *,
    iterations: int = 20,
    hooked: int = 0,
    profiled: int = 3,
    policy=None,
    order=None,
    how: str = "auto",
    settings: dict | None = None,
    workers: Workers | None = None,
) -> Path:
    """Train a workload for some iterations and write what was measured as a run folder.

    Parameters
    ----------
    work : what is trained, in parallel if there are several workers
    folder : new, empty, or of the same run that did not end, which then continues
    iterations : how many are timed, after a warm-up
    hooked : how many more with hooks on the gradients, in turns with those timed
    profiled : how many are profiled then, with hooks
    policy, order, how : as Training takes them
    settings : more of what was asked, for run.json
    workers : those of the process group by default

    Each rank writes iterations_rank<r>.csv (kind, iteration, and the seconds of its parts),
    ready_rank<r>.csv (iteration, name, nbytes, ready_s by the hooks), rank<r>.json.gz (trace of the
    profiled iterations) and gradients_rank<r>.csv (as ready_rank, of the iterations in the trace).
    Rank 0 writes gradients.csv (GRADIENTS of ready_rank0: medians, and quartiles as low_s and
    high_s; a parameter without a gradient comes last, with n_iterations 0), plan.json (the messages
    that several workers sent) and run.json (hardware, software, units).
    """
    workers = workers or current()
    check_trained(work.model)
    asked = {"iterations": int(iterations), "hooked": int(hooked), "profiled": int(profiled)}
    out = Folder(folder, (settings or {}) | asked, workers)
    if out.complete:
        return out.path
    own = sorted({*out.notes, "iterations", "iteration_s", "units"} & set(work.about))
    require(not own, "about", "words that run.json does not use itself", found=", ".join(own))
    training = Training(work, workers, policy, order, how)
    recording = _Recording(out, training, sizes(work.model))
    recording.timed(iterations, hooked)
    if profiled:
        recording.profiled(profiled)
    return out.finish(recording.notes(work, policy, order, profiled))


class _Recording:
    """What one worker writes during a run."""

    def __init__(self, out: Folder, training: Training, nbytes: dict[str, int]):
        self.out, self.training, self.nbytes = out, training, nbytes
        self.rank = out.workers.rank
        self.times = out.path / f"iterations_rank{self.rank}.csv"
        self.ready = out.path / f"ready_rank{self.rank}.csv"
        self.traced = out.path / f"gradients_rank{self.rank}.csv"
        self.source = f"source: workbench.capture, {out.notes['kind']}, {out.notes['date']}"

    def timed(self, iterations: int, hooked: int) -> None:
        """Time iterations, with and without hooks in turns, unless all workers have done so."""
        both = min(iterations, hooked)
        more = ["plain"] * (iterations - both) + ["hooks"] * (hooked - both)
        kinds = ["plain", "hooks"] * both + more
        rows = self._times("plain", "hooks")
        marked = set(rows_of(self.ready, _READY)["iteration"]) if hooked else set()
        whole = rows["kind"].tolist() == kinds
        whole = whole and marked == set(rows["iteration"][rows["kind"] == "hooks"])
        for _ in range(_WARM_UP):
            self.training.iterate()
        if not self.out.workers.slowest([float(not whole)])[0]:
            return
        bar = tqdm(kinds, desc="iterations", unit="iteration", disable=self.rank != 0)
        readies = self._table(self.ready, _READY) if hooked else contextlib.nullcontext()
        with self._table(self.times, _TIMES) as times, readies as ready:
            for number, kind in enumerate(bar):
                with self._marks(kind) as found:
                    seen = self.training.iterate(found)
                self._add_ready(ready, number, found)  # before its time, which makes it complete
                times.add([kind, number, *seen])

    def profiled(self, iterations: int) -> None:
        """Profile iterations; their times follow those of the iterations before."""
        before = self._times("plain", "hooks")
        trace = self.out.path / f"rank{self.rank}.json.gz"
        with ready_marks(self.training.bare, self.training.clock) as marks:
            seen = traced(self.training, iterations, marks, trace)
        with self._table(self.times, _TIMES, before) as times:
            for number, each in enumerate(seen, PROFILER_WARM_UP):
                times.add(["profiled", number, *each])
        with self._table(self.traced, _READY) as ready:
            self._add_ready(ready, PROFILER_WARM_UP, marks)

    def notes(self, work: Workload, policy, order, profiled: int) -> dict:
        """Return what run.json says about the model and its times; write the tables of rank 0."""
        model = self.training.model
        messages = messages_of(model)
        if self.rank == 0:
            self._write_gradients()
            if messages:
                write_messages(self.out.path / "plan.json", messages)
        notes = _model(work, self.nbytes) | work.about
        if messages:
            notes |= {"wrapper": type(model).__name__, "n_messages": len(messages)}
        if policy is not None and order is not None and messages:
            planned = grouped(policy, in_order(order, work.model))
            notes["as_planned"] = list(map(set, planned)) == list(map(set, messages))
        seconds = {
            kind: self._times(kind)["iteration_s"].astype(float).tolist()
            for kind in ("plain", "hooks", "profiled")
        }
        numbers = list(range(PROFILER_WARM_UP, PROFILER_WARM_UP + profiled))
        return notes | {"iterations": numbers, "iteration_s": seconds, "units": _UNITS}

    def _write_gradients(self) -> None:
        """Write GRADIENTS of the iterations with hooks, in the order of their median ready times.

        A parameter without a gradient is still sent, as zeros, when backward ends.
        """
        rows = rows_of(self.ready, _READY)
        if rows.empty:
            return
        each = rows.astype({"ready_s": float, "nbytes": int}).groupby("name", sort=False)
        table = each.agg(nbytes=("nbytes", "first"), ready_s=("ready_s", "median"))
        low, high = (each["ready_s"].quantile(q) for q in (0.25, 0.75))
        table = table.assign(low_s=low, high_s=high, n_iterations=each.size())
        table = table.sort_values("ready_s", kind="stable")
        last_s = table["ready_s"].iloc[-1]
        for name in reversed([name for name in self.nbytes if name not in low]):
            table.loc[name] = [self.nbytes[name], last_s, last_s, last_s, 0]
        table = table.astype({"nbytes": int, "n_iterations": int}).reset_index()
        with self._table(self.out.path / "gradients.csv", list(table)) as out:
            for row in table.itertuples(index=False):
                out.add(row)

    def _marks(self, kind: str) -> contextlib.AbstractContextManager:
        if kind == "plain":
            return contextlib.nullcontext()
        return ready_marks(self.training.bare, self.training.clock)

    def _times(self, *kinds: str) -> pd.DataFrame:
        rows = rows_of(self.times, _TIMES)
        return rows[rows["kind"].isin(kinds)]

    def _table(self, path: Path, columns: tuple, before: pd.DataFrame | None = None) -> Table:
        unit = next(unit for name, unit in _UNITS.items() if path.match(name))
        return Table(path, columns, [self.source, unit], before)

    def _add_ready(self, table: Table | None, number: int, marks: list | None) -> None:
        """Write when each gradient was ready; each mark of backward begins a new iteration."""
        began, number = None, number - 1
        for name, mark in marks or ():
            if not name:
                began, number = mark, number + 1
                continue
            known = name in self.nbytes
            require(known, "model", "the same parameters throughout", found=f"a new one: {name}")
            ready_s = self.training.clock.between(began, mark)
            table.add([number, name, self.nbytes[name], ready_s])


def _model(work: Workload, nbytes: dict[str, int]) -> dict:
    parameters = list(trained(work.model).values())
    dtypes = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in parameters)
    return {
        "model": type(work.model).__name__,
        "dtype": ", ".join(dtypes),
        "n_gradients": len(parameters),
        "n_parameters": sum(p.numel() for p in parameters),
        "gradient_bytes": sum(nbytes.values()),
    }
