"""The command line: profile, collectives, plan, train, compare."""

import argparse
import hashlib
import math
from functools import partial
from pathlib import Path

import torch

from ..base.units import KIB, MIB
from ..whatif import recommend
from .batches import sweep_batches
from .collectives import OPS, sweep_collectives
from .comparing import compared
from .folder import written
from .forecast import forecasts, recorded_scenario, untimed_workers
from .plans import policy_of, write_plan
from .recording import record
from .watch import explained
from .workers import Workers, check_alone, joined
from .workloads import MODELS, workload
from .wrapping import time_wrapper

_ALONE = {"threads": 1, "backend": None, "device": "cpu", "timeout": 120.0}  # nothing is sent


def main(arguments: list[str] | None = None) -> None:
    """Run a command; what is wrong with it is said once, and the exit code is 2.

    An error of the model that is trained is raised as it is.
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
        raise ValueError("how: hooks send the messages of a plan, and ddp has its own; omit --how")
    asked = {"policy": options.policy, "how": options.how}
    if order:
        asked["n_gradients_a_message"] = list(policy.counts)
        # So that a run is not gone on with in the messages of another file of this name.
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
    return sweep_collectives(
        options.out,
        ops=options.ops,
        n_workers=options.workers,
        smallest=options.smallest,
        largest=options.largest,
        tight=options.tight,
        seconds=options.seconds,
        least=options.least,
        label=options.label,
        workers=workers,
    )


def _plan(options: argparse.Namespace, workers: Workers) -> Path:
    check_alone(workers, "plan")
    scenario = recorded_scenario(options.profile, options.collectives, options.workers)
    best, table = forecasts(scenario)
    # Before it prints: who reads may leave early, as head does.
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
        written(options.out, table.to_csv(index=False))
    print(table.to_string(index=False, float_format="%.4f"))
    return options.out


def _make(options: argparse.Namespace, workers: Workers) -> partial:
    """Return batch -> Workload; each worker's data are its own, the model is rank 0's."""
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
    profile = commands.add_parser("profile", help="one worker: when each gradient is ready")
    profile.add_argument("--batches", type=_numbers, default=[], help="batch sizes, such as 1,2,4")
    train = commands.add_parser("train", help="several workers with a fusion policy")
    policies = "ddp, per-tensor, one-message, fixed:<MiB> or plan:<file>"
    train.add_argument("--policy", default="ddp", help=policies)
    train.add_argument("--how", choices=["auto", "ddp", "hooks"], default="auto")
    for command, run, iterations in ((profile, _profile, 20), (train, _train, 50)):
        command.set_defaults(run=run)
        _add_workload(command, iterations)
    collectives = commands.add_parser("collectives", help="time collectives of doubling sizes")
    collectives.set_defaults(run=_collectives)
    collectives.add_argument("--ops", type=_words, default=["all_reduce"], help=",".join(OPS))
    collectives.add_argument("--workers", type=_numbers, help="sub-worlds, such as 2,4,8")
    collectives.add_argument("--smallest", type=_positive, default=KIB, help="bytes")
    collectives.add_argument("--largest", type=_positive, default=64 * MIB, help="bytes")
    tight = "repeat until the interval of the median is within this share of it"
    collectives.add_argument("--tight", type=_number, default=0.05, help=tight)
    collectives.add_argument("--seconds", type=_number, default=1.5, help="or for so many s")
    least = "but so many times at least"
    collectives.add_argument("--least", type=_positive, default=3, help=least)
    for command in (profile, train, collectives):
        command.add_argument("--out", required=True, help="folder: new, or to go on with")
        command.add_argument("--label", default="", help="what run.json is to say of this run")
        _add_common(command)
    _add_plan(commands.add_parser("plan", help="the best plan of messages from what was recorded"))
    _add_compare(commands.add_parser("compare", help="runs measured beside what was predicted"))
    return parser


def _add_plan(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=_plan)
    command.add_argument("--profile", required=True, help="folder that profile wrote")
    command.add_argument("--collectives", required=True, help="folder that collectives wrote")
    command.add_argument("--workers", type=_positive, required=True, help="to plan for")
    command.add_argument("--out", required=True, help="file for --policy plan:<file>")
    command.set_defaults(**_ALONE)


def _add_compare(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=_compare)
    command.add_argument("runs", nargs="+", type=Path, help="folders that train wrote")
    command.add_argument("--profile", required=True, help="folder that profile wrote")
    command.add_argument("--collectives", required=True, help="folder that collectives wrote")
    command.add_argument("--out", type=Path, help="CSV for the table")
    command.set_defaults(**_ALONE)


def _add_workload(command: argparse.ArgumentParser, iterations: int) -> None:
    models = f"{', '.join(MODELS)}, or module:function"
    command.add_argument("--model", required=True, help=models)
    command.add_argument("--small", action="store_true", help="the model at a size for tests")
    command.add_argument("--size", type=_positive, help="pixels a side, or tokens of a sequence")
    command.add_argument("--batch", type=_positive, default=4, help="samples a worker")
    timed, profiled = "iterations timed", "iterations profiled"
    command.add_argument("--iterations", type=_positive, default=iterations, help=timed)
    command.add_argument("--profiled", type=_whole, default=3, help=profiled)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", type=_positive, default=1, help="CPU threads a worker")
    command.add_argument("--backend", choices=["nccl", "gloo", "mpi"])
    command.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    silent = "s without a sign of a worker until the others end"
    command.add_argument("--timeout", type=_number, default=120.0, help=silent)


def _whole(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        expected = f"expected a whole number of {least} or more"
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
