"""The study: what OSF predicts for training on emulated networks, and what is measured there.

    python tests/tools/study.py [--quick] [--out FOLDER] [--networks 0,2] [--workers 2]

First comes one worker's profile, then timed all-reduces and a plan of messages from both; then all
policies train in turns, a few iterations each, round after round, so a drift of the machine affects
all of them. Compute is paced (see paced), networks are namespaces (see netlab), which needs root.
What the folder already has is not measured again: remove it to begin again.
"""

import argparse
import contextlib
import fcntl
import itertools
import json
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import wait
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from netlab import Network, end_with_parent, hosts, in_real_time, missing
from paced import models, trained_well, workload
from torch.distributed import ProcessGroupGloo
from tqdm import tqdm

from workbench import KIB, MIB
from workbench.base.tables import rows_of
from workbench.capture import messages_of, record, sweep_collectives, time_wrapper
from workbench.capture.collectives import interval
from workbench.capture.folder import Table
from workbench.capture.machine import machine
from workbench.capture.training import Training
from workbench.capture.workers import Workers, current
from workbench.timeline.from_run import wrapper_s
from workbench.validation.study import (
    CELLS,
    PROFILES,
    errors,
    gains,
    policies,
    predicted,
    read_study,
    scenario,
)

OUT = Path(__file__).parents[2] / "data" / "runs" / "study"
NETWORKS = (
    Network(50, 1000),
    Network(200, 500),
    Network(1000, 100),
    Network(1000, 2000),
    Network(3000, 50),
    Network(10_000),
)
WORKERS = (2, 4)
_MOST = 8  # workers, one per port of the switch
N_POLICIES = 6
_WARM_UP = 2  # iterations of each policy; DDP regroups its buckets after the first
_BLOCK = 4  # iterations of a policy until the next one's turn
_LARGEST = 8 * MIB  # bytes of a message timed: the largest model has 7
_SIZES = (_LARGEST // KIB).bit_length()  # doubling from 1 KiB
_TIGHT = 0.02  # half of the 95 % interval of a message's time, unless the seconds are over
_SILENT = timedelta(seconds=30)  # then a message is lost, as where the switch was killed
_PORT = "29517"  # in namespaces of our own, where nobody else listens
_SERIAL = "gloo_serial"  # our name of the backend
_COLLECTIVES = ("network", "op", "n_workers", "n_nodes", "nbytes", "seconds", "low_s", "high_s")
_ITERATIONS = ("network", "n_workers", "model", "policy", "round", "seconds")
_TABLES = {
    "profiles": tuple(PROFILES),
    "collectives": _COLLECTIVES,
    "iterations": _ITERATIONS,
    "cells": tuple(CELLS),
}
_COMMENTS = (
    "source: make study; compute is paced, networks are emulated on one machine: see run.json",
    "times in s, sizes in bytes",
)


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds of blocks, iterations of a profile, time for messages.

    Each size of message gets `seconds`, or on a slow network as long as the largest takes `times`
    times: large messages vary by about 10 % there, because control messages of gloo queue behind
    data.
    """

    rounds: int = 5
    iterations: int = 20
    seconds: float = 1.0
    times: int = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--quick", action="store_true", help="a part of it, in 2 minutes")
    known = ", ".join(f"{at}: {network.name}" for at, network in enumerate(NETWORKS))
    parser.add_argument("--networks", type=chosen(range(len(NETWORKS)), int), help=known)
    counts = range(2, _MOST + 1)
    parser.add_argument("--workers", type=chosen(counts, int), help=f"2 to {_MOST}, such as 2,4")
    parser.add_argument("--models", type=chosen(models()), help=", ".join(models()))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes networks
    quick = options.quick
    networks = [NETWORKS[at] for at in options.networks or ([2, 5] if quick else range(6))]
    names = options.models or (["resnet50", "lstm"] if quick else list(models()))
    effort = Effort(rounds=2, iterations=5, seconds=0.3, times=3) if quick else Effort()
    counts = options.workers or (WORKERS[:1] if quick else WORKERS)
    try:
        if why := missing():
            sys.exit(f"study: {why}")
        with alone_in(options.out):
            measure(options.out, networks, counts, names, effort)
        table = predicted(read_study(options.out))
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"study: {error}")
    except KeyboardInterrupt:
        sys.exit("study: interrupted; the same command goes on with it")
    for by in (("n_workers",), ("n_workers", "model"), ("n_workers", "case")):
        print(errors(table, by).to_string(index=False, float_format="%.4f"))
    print(gains(table).groupby(["n_workers", "baseline"], sort=False)[["gain", "predicted_gain"]]
          .describe(percentiles=[0.5]).to_string(float_format="%.3f"))  # fmt: skip


def chosen(known, kind=str):
    """Return what reads some of the known from a text such as 2,4."""

    def read(text: str) -> list:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError:
            found = [text]
        if strange := [each for each in found if each not in known]:
            expected = ", ".join(map(str, known))
            raise argparse.ArgumentTypeError(f"expected some of {expected}; got {strange[0]}")
        return list(dict.fromkeys(found))

    return read


@contextlib.contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Make the folder, and keep others from it until this process and its workers end."""
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ValueError(f"{out}: another study is measured into it; name a new folder") from None
    finally:
        os.close(lock)


def measure(out: Path, networks, counts, names, effort: Effort) -> None:
    """Measure what the folder does not have yet."""
    for name, columns in _TABLES.items():
        rows = rows_of(path := out / f"{name}.csv")
        if path.exists() and tuple(rows) != columns:
            raise ValueError(f"{path}: damaged, or another table: remove it to measure it again")
    left = [
        name
        for name in names
        if len(found(out / "profiles.csv", model=name)) != len(models()[name].layers)
    ]
    before = rows_of(out / "cells.csv")
    for name in tqdm(left, desc="profiles", unit="model"):
        started(profile, [(out, name, effort)])
    for network, n in itertools.product(networks, counts):
        left = [name for name in names if not whole(out, network.name, n, name)]
        if left:
            with hosts(network, n) as made, tempfile.TemporaryDirectory() as spare:
                given = network, made, left, out, effort, spare
                started(work, [(rank, *given) for rank in range(n)])
    if (out / "run.json").exists() and rows_of(out / "cells.csv").equals(before):
        return  # so that it keeps the date of these measurements
    measured = [each for each in NETWORKS if len(found(out / "cells.csv", network=each.name))]
    notes = json.dumps(about(measured), indent=2)
    (out / "run.json").write_text(notes + "\n", encoding="utf-8")


def started(function, arguments: list[tuple]) -> None:
    """Run a function in a process for each tuple of arguments; raise when one does not end well.

    They are forked, so that torch is imported once.
    """
    fork = multiprocessing.get_context("fork")
    each = [fork.Process(target=function, args=given) for given in arguments]
    for process in each:
        process.start()
    try:
        while running := [process.sentinel for process in each if process.is_alive()]:
            wait(running)
            codes = [process.exitcode for process in each]
            if any(codes):  # for which the others would wait
                break
        else:
            codes = [process.exitcode for process in each]
    finally:
        for process in each:
            process.kill()
            process.join()
    if any(codes):
        raise RuntimeError(
            f"{function.__name__}: exit codes by rank {codes}, None for those that it ended; see "
            "above. The same command goes on with what was measured"
        )


def begin() -> None:
    """Make this a process of the study: it ends with its parent, and gets a core when it is due."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's; the parent ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    if os.getppid() != multiprocessing.parent_process().pid:
        os._exit(1)  # the parent ended before this process could end with it
    in_real_time()
    torch.set_num_threads(1)


def profile(out: Path, name: str, effort: Effort) -> None:
    """Add a model's profile on one worker to profiles.csv."""
    begin()
    paced, n = models()[name], effort.iterations
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        record(workload(paced), path, iterations=n, hooked=n, profiled=0, workers=Workers())
        gradients = pd.read_csv(path / "gradients.csv", comment="#")
        times = rows_of(path / "iterations_rank0.csv").set_index("kind")
        pairs = time_wrapper(lambda: workload(paced), path / "wrapper.csv", iterations=n)
        wrapper = wrapper_s(pairs)
    one_worker_s = float(times.loc["plain", "iteration_s"].astype(float).median())
    backward_s = float(times.loc["hooks", "backward_s"].astype(float).median())
    backward_s = max(backward_s, gradients["ready_s"].iloc[-1])
    times = one_worker_s, backward_s, wrapper
    rows = [
        [name, paced.scale, row.name, row.nbytes, row.ready_s, *times]
        for row in gradients.itertuples(index=False)
    ]
    append(out / "profiles.csv", rows, ("model",))


def work(rank: int, network: Network, made: list, names: list, out: Path, effort, spare) -> None:
    """Be a worker on a network: time messages, then train models with each policy in turns."""
    begin()
    made[rank].enter()
    os.environ.update(GLOO_SOCKET_IFNAME=made[rank].interface, LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR=made[0].address, MASTER_PORT=_PORT)
    dist.Backend.register_backend(_SERIAL, serial_gloo, devices=["cpu"])
    dist.init_process_group(_SERIAL, rank=rank, world_size=len(made), timeout=_SILENT)
    workers = current()
    path = out / "collectives.csv"
    timed = len(found(path, network=network.name, n_workers=len(made)))
    workers.meet()  # all have looked before rank 0 writes
    if timed != _SIZES:
        time_messages(network, workers, path, effort, spare)
    table = pd.read_csv(path, comment="#")
    for name in names:
        train(network, name, workers, table[table["network"] == network.name], out, effort)
    workers.meet()
    dist.destroy_process_group()


def serial_gloo(store, rank: int, size: int, timeout) -> ProcessGroupGloo:
    """Return torch's gloo backend with one thread, so that messages run one after another.

    torch starts two, by which two messages may be under way; NCCL has one stream a group.
    """
    options = ProcessGroupGloo._Options()
    options._threads, options._timeout = 1, timeout
    interface = os.environ["GLOO_SOCKET_IFNAME"]  # torch itself reads it
    options._devices = [ProcessGroupGloo.create_device(interface=interface)]
    return ProcessGroupGloo(store, rank, size, options)


def time_messages(network: Network, workers: Workers, path: Path, effort: Effort, spare) -> None:
    """Add what all-reduces take on a network to collectives.csv."""
    once_s = _LARGEST * 8 / (network.mbit * 1e6)
    seconds = max(effort.seconds, effort.times * once_s)
    limits = {"smallest": KIB, "largest": _LARGEST, "tight": _TIGHT, "seconds": seconds}
    folder = sweep_collectives(f"{spare}/messages", **limits, workers=workers)
    if workers.rank == 0:
        rows = rows_of(folder / "collectives.csv")[list(_COLLECTIVES[1:])]
        rows = [[network.name, *row] for row in rows.itertuples(index=False)]
        append(path, rows, ("network", "n_workers"))
    workers.meet()


def train(network: Network, name: str, workers: Workers, timed, out: Path, effort: Effort) -> None:
    """Add a model's cells on a network to cells.csv, and their iterations to iterations.csv."""
    profiles = pd.read_csv(out / "profiles.csv", comment="#")
    planned = scenario(profiles[profiles["model"] == name], timed, workers.n_workers)
    paced = models()[name]
    trainings = {}
    for policy, chosen in policies(planned, paced.scale).items():
        chosen = None if policy == "DDP" else chosen  # torch's own
        order = None if policy == "DDP" else planned.gradients
        trainings[policy] = Training(workload(paced, workers.rank), workers, chosen, order)
    cell, rows = [network.name, workers.n_workers, name], []
    for training in trainings.values():
        for _ in range(_WARM_UP):
            training.iterate()
    turns = list(itertools.product(range(effort.rounds), trainings))
    words = f"{network.name}, {workers.n_workers} workers, {name}"
    for number, policy in tqdm(turns, words, unit="block", disable=workers.rank > 0):
        workers.meet()
        for _ in range(_BLOCK):
            seconds = trainings[policy].iterate().iteration_s
            rows.append([*cell, policy, number, seconds])
    for policy, training in trainings.items():
        if not trained_well(training.model, workers.n_workers, _WARM_UP + _BLOCK * effort.rounds):
            raise RuntimeError(f"{words}, {policy}: weights are not those of mean gradients")
    if workers.rank == 0:
        cells = [
            [*cell, policy, len(messages_of(training.model)), *summary(rows, policy)]
            for policy, training in trainings.items()
        ]
        key = ("network", "n_workers", "model")
        append(out / "iterations.csv", rows, key)
        append(out / "cells.csv", cells, key)  # last: what has cells is complete


def summary(rows: list, policy: str) -> tuple[float, float, float]:
    """Return the median of a policy's iterations, and the ends of its 95 % interval."""
    seconds = sorted(row[-1] for row in rows if row[3] == policy)
    return statistics.median(seconds), *interval(seconds)


def append(path: Path, rows: list, key: tuple) -> None:
    """Add rows to a table in one go, all or none; they replace those of the same key, cut before.

    key : columns, in which the rows are alike
    """
    columns, before = _TABLES[path.stem], rows_of(path)
    for_key = {name: rows[0][columns.index(name)] for name in key}
    kept = before.drop(index=found(path, **for_key).index)
    part = path.with_name(f".{path.name}")
    with Table(part, columns, _COMMENTS, kept) as table:
        for row in rows:
            table.add(row)
    os.replace(part, path)


def found(path: Path, **values) -> pd.DataFrame:
    """Return the rows of a table that have these values; none if there is no table yet."""
    rows = rows_of(path)
    for name, value in values.items() if len(rows) else ():
        rows = rows[rows[name] == str(value)]
    return rows


def whole(out: Path, network: str, n_workers: int, model: str) -> bool:
    """Return whether all policies were measured."""
    cells = found(out / "cells.csv", network=network, n_workers=n_workers, model=model)
    return len(cells) == N_POLICIES


def about(networks: list) -> dict:
    """Return the content of run.json."""
    alone = machine(Workers(backend="gloo"))
    kept = ("hardware", "software", "load_average")
    return {
        "kind": "CPU run on emulated networks of one machine: times are not those of a cluster",
        "date": datetime.now(UTC).date().isoformat(),
        **{name: alone[name] for name in kept},
        "kernel": platform.release(),
        "compute": "paced: sleeps end when a real model's gradients were ready; sizes to scale",
        "backend": "gloo with one thread, so that messages run one after another",
        "scheduling": "workers and switch in real time (SCHED_RR), one thread a worker",
        "networks": {each.name: each.made_by for each in networks},
        "units": "s, bytes; 1 Mbit/s is 10**6 bit/s each way, delays are one way",
    }


if __name__ == "__main__":
    main()
