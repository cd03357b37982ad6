"""The command line of `python -m workbench.capture`: profile, collectives, plan, train, compare."""

import argparse
import hashlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ..base.units import KIB, MIB
from ..whatif import recommend
from .batches import sweep_batches
from .collectives import OPS, sweep_collectives
from .comparing import compared
from .folder import write_text
from .forecast import forecasts, recorded_scenario, untimed_workers
from .plans import policy_of, write_plan
from .recording import record
from .watch import explained
from .workers import Workers, check_alone, joined
from .workloads import MODELS, workload
from .wrapping import time_wrapper

_ALONE = {"threads": 1, "backend": None, "device": "cpu", "timeout": 120.0}  # nothing is sent


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a wrong argument gives one message and exit code 2.

    An error of the model that is trained is raised unchanged.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    try:
        with joined(options.backend, options.device, options.timeout) as workers:
            made = options.run(options, workers)
            if workers.rank == 0 and made:
                print(f"wrote {made}")
    except (ValueError, OSError) as error:
        if not explained(error):
            raise
        parser.error(str(error))


def _profile(options: argparse.Namespace, workers: Workers) -> Path:
    check_alone(workers, "profile")
    make = _make(options, workers)
    each = options.iterations
    folder = record(
        make(options.batch),
        options.out,
        iterations=each,
        hooked=each,
        profiled=options.profiled,
        settings=_settings(options),
        workers=workers,
    )
    time_wrapper(partial(make, options.batch), folder / "wrapper.csv", iterations=each)
    if options.batches:
        sweep_batches(make, options.batches, folder / "batches.csv", iterations=each)
    return folder


def _train(options: argparse.Namespace, workers: Workers) -> Path:
    policy, order = policy_of(options.policy)
    if policy is None and options.how == "hooks":
        raise ValueError("how: expected auto or ddp with --policy ddp, got hooks. Omit --how")
    asked = {"policy": options.policy, "how": options.how}
    if order:
        asked["n_gradients_a_message"] = list(policy.counts)
        # So that a run is not continued in the messages of another file of this name.
        asked["names_sha256"] = hashlib.sha256("\n".join(order).encode()).hexdigest()[:16]
    return record(
        _make(options, workers)(options.batch),
        options.out,
        iterations=options.iterations,
        profiled=options.profiled,
        policy=policy,
        order=order,
        how=options.how,
        settings=_settings(options) | asked,
        workers=workers,
    )


def _collectives(options: argparse.Namespace, workers: Workers) -> Path:
    names = ("ops", "n_workers", "smallest", "largest", "tight", "seconds", "least", "label")
    asked = {name: getattr(options, name) for name in names}
    return sweep_collectives(options.out, **asked, workers=workers)


def _plan(options: argparse.Namespace, workers: Workers) -> Path:
    check_alone(workers, "plan")
    scenario = recorded_scenario(options.profile, options.collectives, options.workers)
    best, table = forecasts(scenario)
    # Before it prints: a reader of the output may leave early, as head does.
    path = write_plan(options.out, best.fusion, scenario.gradients)
    if why := untimed_workers(scenario):
        print(why)
    print(f"predicted for {options.workers} workers:")
    print(table.to_string(index=False, float_format="%.4f"))
    for row in recommend(scenario).iloc[2:].itertuples():
        print(f"{row.paste}  # scaling factor {row.scaling_factor:.4f}")
    return path


def _compare(options: argparse.Namespace, workers: Workers) -> Path | None:
    check_alone(workers, "compare")
    table = compared(options.profile, options.collectives, options.runs)
    if options.out:
        write_text(options.out, table.to_csv(index=False))
    print(table.to_string(index=False, float_format="%.4f"))
    return options.out


def _make(options: argparse.Namespace, workers: Workers) -> partial:
    """Return batch -> Workload; each worker has its own data and rank 0's model."""
    chosen = {"small": options.small, "size": options.size, "seed": workers.rank}
    return partial(workload, options.model, **chosen)


def _settings(options: argparse.Namespace) -> dict:
    return {
        name: getattr(options, name)
        for name in ("command", "label", "model", "batch", "small", "size", "threads")
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "workbench.capture", description="Record a training run and the price of its messages."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Callable, words: str, *parents, **defaults) -> Callable:
        command = commands.add_parser(name, help=words, parents=[each() for each in parents])
        command.set_defaults(run=run, **defaults)
        return command.add_argument

    option = add("profile", _profile, "one worker: when each gradient is ready", _work, _run)
    option("--iterations", type=_positive, default=20, help="iterations timed")
    option("--batches", type=_numbers, default=[], help="batch sizes, such as 1,2,4")
    option = add("train", _train, "several workers with a fusion policy", _work, _run)
    option("--iterations", type=_positive, default=50, help="iterations timed")
    policies = "ddp, per-tensor, one-message, fixed:<MiB> or plan:<file>"
    option("--policy", default="ddp", help=policies)
    option("--how", choices=["auto", "ddp", "hooks"], default="auto")
    option = add("collectives", _collectives, "time collectives of doubling sizes", _run)
    option("--ops", type=_words, default=["all_reduce"], help=",".join(OPS))
    sub_worlds = "sub-worlds, such as 2,4,8"
    option("--workers", type=_numbers, dest="n_workers", metavar="WORKERS", help=sub_worlds)
    option("--smallest", type=_positive, default=KIB, help="bytes")
    option("--largest", type=_positive, default=64 * MIB, help="bytes")
    tight = "repeat until the interval of the median is within this share of it"
    option("--tight", type=_number, default=0.05, help=tight)
    option("--seconds", type=_number, default=1.5, help="or for this many s")
    option("--least", type=_positive, default=3, help="but at least this many times")
    option = add("plan", _plan, "the best plan of messages from recordings", _recorded, **_ALONE)
    option("--workers", type=_positive, required=True, help="to plan for")
    option("--out", required=True, help="file for --policy plan:<file>")
    option = add("compare", _compare, "measured and predicted iterations", _recorded, **_ALONE)
    option("runs", nargs="+", type=Path, help="folders that train wrote")
    option("--out", type=Path, help="CSV for the table")
    return parser


def _recorded() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--profile", required=True, help="folder that profile wrote")
    options.add_argument("--collectives", required=True, help="folder that collectives wrote")
    return options


def _work() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    models = f"{', '.join(MODELS)}, or module:function"
    options.add_argument("--model", required=True, help=models)
    options.add_argument("--small", action="store_true", help="the model at a size for tests")
    options.add_argument("--size", type=_positive, help="pixels per side, or tokens of a sequence")
    options.add_argument("--batch", type=_positive, default=4, help="samples per worker")
    options.add_argument("--profiled", type=_whole, default=3, help="iterations profiled")
    return options


def _run() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--out", required=True, help="folder: new, or to go on with")
    options.add_argument("--label", default="", help="a note for run.json")
    options.add_argument("--threads", type=_positive, default=1, help="CPU threads per worker")
    options.add_argument("--backend", choices=["nccl", "gloo", "mpi"])
    options.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    silent = "s without a sign of a worker until the others end"
    options.add_argument("--timeout", type=_number, default=120.0, help=silent)
    return options


def _whole(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        expected = f"expected a whole number from {least} up"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    return _whole(text, 1)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e6:  # more s than a run has, and torch counts in ms
        raise argparse.ArgumentTypeError(f"expected a number above 0 up to 1e6, got {text!r}")
    return value


def _numbers(text: str) -> list[int]:
    return [_positive(each) for each in text.split(",")]


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]
