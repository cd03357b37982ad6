"""Record a training run and the price of its all-reduces.

    python -m workbench.capture run --model resnet50 --out one-worker
    torchrun --standalone --nproc-per-node 2 -m workbench.capture run --model resnet50 --out two
    torchrun --standalone --nproc-per-node 2 -m workbench.capture sweep --out sweep.csv

The backend is nccl where torch sees a GPU and gloo otherwise. One process needs no process group.
For a model of your own, call `record` inside your own script, under torchrun or without.
"""

import argparse
import contextlib
import csv
import gzip
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from .units import KIB, MIB, format_bytes

WARM_UP = 3  # iterations; DDP regroups its buckets after the first
PROFILER_WARM_UP = 2  # iterations; the first ones under the profiler are slower
UNITS = {
    "iteration_s": "seconds on rank 0's clock: plain, with hooks, with hooks and profiler",
    "gradient_bytes": "bytes of all gradients as they are reduced",
    "load_average": "runnable processes over the minute before the run",
    "gradients_rank*.csv": "nbytes in bytes; ready_s in seconds since backward began",
    "rank*.json.gz": "Chrome trace, times in microseconds",
}
# What a trace says of the machine or the person (host_name, traceName with its path) stays out.
TRACE_KEYS = (
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "traceEvents",
)


class Bottleneck(nn.Module):
    """Residual block of ResNet-50, stride on the 3x3 convolution (arXiv 1512.03385, v1.5)."""

    def __init__(self, n_in: int, width: int, stride: int):
        super().__init__()
        n_out = 4 * width
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or n_in != n_out:
            shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        # The shortcut comes last: backward then reaches its gradients first, as in torchvision.
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50: 161 gradients, 25,557,032 parameters, named as torchvision names them."""

    def __init__(self, n_classes: int = 1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        n_in = 64
        for layer, (n_blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
            strides = [1 if layer == 1 else 2] + [1] * (n_blocks - 1)
            inputs = [n_in] + [4 * width] * (n_blocks - 1)
            blocks = (Bottleneck(n, width, s) for n, s in zip(inputs, strides, strict=True))
            setattr(self, f"layer{layer}", nn.Sequential(*blocks))
            n_in = 4 * width
        self.fc = nn.Linear(n_in, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


class Transformer(nn.Module):
    """A small transformer encoder predicting tokens: 4 layers of width 256, 8,192 tokens."""

    def __init__(self, n_tokens: int = 8192, width: int = 256, length: int = 128):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, n_tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.position)).transpose(1, 2)


def record(
    model: nn.Module,
    batch: tuple[torch.Tensor, torch.Tensor],
    loss: Callable,
    folder: str | Path,
    *,
    iterations: int = 3,
    optimizer: torch.optim.Optimizer | None = None,
    about: dict | None = None,
) -> Path:
    """Train a model for a few iterations and write what was seen as a run folder.

    Parameters
    ----------
    model : on its device; wrapped in DistributedDataParallel if need be where workers are several
    batch : (inputs, targets) of this worker, used in every iteration
    loss : loss(model(inputs), targets) -> scalar tensor
    folder : new or empty; every worker writes its own files, on one node or a shared disk
    iterations : how many are profiled, after the warm-up
    optimizer : steps at the end of an iteration; SGD when not given
    about : more entries for run.json

    Writes rank<r>.json.gz (profiler trace with shapes), gradients_rank<r>.csv (iteration, name,
    nbytes, ready_s: hook times of the same iterations) and run.json (hardware, software, units).
    Raises ValueError when the folder holds files already or an argument makes no run.
    """
    if iterations < 1:
        raise ValueError(f"iterations: expected 1 or more, got {iterations}")
    if not _trained(model):
        raise ValueError("model: it has no parameter that requires a gradient, so nothing to train")
    folder = _empty(Path(folder))
    rank, load = _rank(), os.getloadavg()[0]
    clock = _Clock(next(model.parameters()).device)
    iterate = _training(model, batch, loss, optimizer, clock)
    seconds = {"plain": [iterate([]) for _ in range(WARM_UP + iterations)][WARM_UP:]}
    with _hooks(model, clock) as marks:
        seconds["hooks"] = [iterate(marks) for _ in range(iterations)]
        marks.clear()
        profiled, seconds["profiled"] = _profile(iterate, marks, iterations, clock)
    _write_trace(profiled, folder / f"rank{rank}.json.gz")
    _write_ready(marks, _sizes(model), clock, folder / f"gradients_rank{rank}.csv")
    if rank == 0:
        run = _run_info(clock.device) | _model_info(model, batch) | (about or {})
        profiled_iterations = list(range(PROFILER_WARM_UP, PROFILER_WARM_UP + iterations))
        run |= {"iterations": profiled_iterations, "iteration_s": seconds, "load_average": load}
        text = json.dumps(run | {"units": UNITS}, indent=2) + "\n"
        (folder / "run.json").write_text(text, encoding="utf-8")
    _meet()
    return folder


def _training(model, batch, loss, optimizer, clock) -> Callable[[list], float]:
    """One iteration as a function: mark where backward begins, return the seconds it took."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    if _n_workers() > 1 and not isinstance(model, DistributedDataParallel):
        model = DistributedDataParallel(model)

    def iterate(marks: list) -> float:
        began = time.perf_counter()
        with record_function("forward"):
            value = loss(model(batch[0]), batch[1])
        marks.append(("", clock.mark()))
        with record_function("backward"):
            value.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        clock.wait()
        return time.perf_counter() - began

    return iterate


def sweep_all_reduce(
    path: str | Path, *, smallest: int = KIB, largest: int = 64 * MIB, seconds: float = 1.5
) -> Path:
    """Time all-reduces of doubling sizes between all workers and write MEASUREMENTS as CSV.

    A repetition's time is its slowest worker's, from a barrier to the call's return (on a GPU: to
    the end of the collective). Columns: op, n_workers, n_nodes, nbytes, seconds (median over
    repetitions), min_s, p90_s, repetitions. `seconds` is how long one size is repeated, at least
    5 and at most 200 times. Raises ValueError with fewer than two workers,
    for sizes out of order, and when the file exists.
    """
    path = Path(path)
    if not 4 <= smallest <= largest or smallest % 4:
        raise ValueError(
            "sizes: expected 4 <= smallest <= largest, smallest a multiple of 4 bytes (float32), "
            f"got {smallest} and {largest}"
        )
    if _n_workers() < 2:
        raise ValueError(
            "an all-reduce needs 2 or more workers, got 1: start with "
            "torchrun --standalone --nproc-per-node 2 -m workbench.capture sweep ..."
        )
    if path.exists():
        raise ValueError(f"{path} exists: name a new file")
    _meet()
    info = _run_info(_device()) | {"load_average": os.getloadavg()[0]}
    sizes = [smallest * 2**k for k in range((largest // smallest).bit_length())]
    rows = [_time_all_reduce(nbytes, seconds) for nbytes in sizes]
    if _rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            file.writelines(f"# {line}\n" for line in _sweep_header(info))
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow("op n_workers n_nodes nbytes seconds min_s p90_s repetitions".split())
            writer.writerows(
                ["all_reduce", info["world_size"], info["n_nodes"], *row] for row in rows
            )
    _meet()
    return path


def _time_all_reduce(nbytes: int, seconds: float) -> list:
    clock = _Clock(_device())
    message = torch.zeros(nbytes // 4, device=clock.device)  # zeros: sums in place never overflow

    def once() -> float:
        _meet()
        began = time.perf_counter()
        dist.all_reduce(message)
        clock.wait()
        return time.perf_counter() - began

    once()
    # The workers must agree on the number of repetitions, so it too comes from the slowest.
    repetitions = max(5, min(200, int(seconds / max(_slowest([once()])[0], 1e-4))))
    times = sorted(_slowest([once() for _ in range(repetitions)]))
    p90 = times[int(0.9 * repetitions)]
    return [nbytes, *(f"{t:.9f}" for t in (statistics.median(times), times[0], p90)), repetitions]


def _slowest(times: list[float]) -> list[float]:
    together = torch.tensor(times, dtype=torch.float64, device=_device())
    dist.all_reduce(together, dist.ReduceOp.MAX)
    return together.tolist()


def _sweep_header(info: dict) -> list[str]:
    return [
        f"source: workbench.capture sweep, {info['kind']}, {info['date']}",
        f"hardware: {info['hardware']}",
        f"software: {json.dumps(info['software'])}; backend {info['backend']}",
        f"load average before: {info['load_average']:.2f}; "
        f"threads a worker: {info['threads_per_worker']}",
        "nbytes in bytes; seconds (median), min_s, p90_s over repetitions of the slowest worker",
    ]


class _Clock:
    """Marks in time: the host's clock, or events on the GPU's current stream."""

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self):
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def between(self, first, last) -> float:
        if self.device.type != "cuda":
            return last - first
        return first.elapsed_time(last) / 1e3  # elapsed_time is in ms


@contextlib.contextmanager
def _hooks(model: nn.Module, clock: _Clock):
    """Yield a list that each gradient's name and mark is appended to once it is accumulated."""
    marks: list = []
    handles = [
        p.register_post_accumulate_grad_hook(
            lambda _, name=name: marks.append((name, clock.mark()))
        )
        for name, p in _trained(model).items()
    ]
    try:
        yield marks
    finally:
        for handle in handles:
            handle.remove()


def _profile(iterate: Callable, marks: list, iterations: int, clock: _Clock) -> tuple:
    activities = [ProfilerActivity.CPU]
    if clock.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=0, warmup=PROFILER_WARM_UP, active=iterations, repeat=1)
    seconds = []
    with profile(activities=activities, schedule=plan, record_shapes=True, acc_events=True) as p:
        for k in range(PROFILER_WARM_UP + iterations):
            if k == PROFILER_WARM_UP:
                marks.clear()
            seconds.append(iterate(marks))
            p.step()
    return p, seconds[PROFILER_WARM_UP:]


def _write_trace(profiled: profile, path: Path) -> None:
    raw = path.with_suffix(".raw")
    profiled.export_chrome_trace(str(raw))
    trace = json.loads(raw.read_text(encoding="utf-8"))
    raw.unlink()
    trace = {key: trace[key] for key in TRACE_KEYS if key in trace}
    trace.setdefault("distributedInfo", {"rank": 0, "world_size": 1})  # torch omits it for one
    # mtime=0 and no name in the header: the same trace gives the same bytes anywhere.
    packed = gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), 9, mtime=0)
    path.write_bytes(packed)


def _write_ready(marks: list, sizes: dict, clock: _Clock, path: Path) -> None:
    iteration = PROFILER_WARM_UP - 1
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(
            "# source: workbench.capture, post-accumulate-grad hooks; iteration as in trace\n"
        )
        file.write("# nbytes in bytes; ready_s in seconds since backward began\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["iteration", "name", "nbytes", "ready_s"])
        for name, mark in marks:
            if not name:
                began, iteration = mark, iteration + 1
                continue
            writer.writerow([iteration, name, sizes[name], f"{clock.between(began, mark):.9f}"])


def _trained(model: nn.Module) -> dict:
    return {name: p for name, p in _bare(model).named_parameters() if p.requires_grad}


def _bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _sizes(model: nn.Module) -> dict:
    return {name: p.numel() * p.element_size() for name, p in _trained(model).items()}


def _model_info(model: nn.Module, batch: tuple) -> dict:
    parameters = list(_trained(model).values())
    return {
        "model": type(_bare(model)).__name__,
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "batch_per_worker": len(batch[0]),
        "n_gradients": len(parameters),
        "n_parameters": sum(p.numel() for p in parameters),
        "gradient_bytes": sum(_sizes(model).values()),
    }


def _run_info(device: torch.device) -> dict:
    n_workers, cuda = _n_workers(), device.type == "cuda"
    backend = dist.get_backend() if n_workers > 1 else "none"
    where = "GPU run" if cuda else "CPU run, no GPU: times are not those of a GPU cluster"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name(device) if cuda else "no GPU"
    cpu = f"{_cpu()} ({os.cpu_count()} cores, {format_bytes(memory)} memory)"
    return {
        "kind": f"{where}; communication: {backend}",
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{gpu}; CPU {cpu}",
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "none",
            "workbench": metadata.version("osf-workbench"),
        },
        "backend": backend,
        "device": device.type,
        "world_size": n_workers,
        "n_nodes": n_workers // int(os.environ.get("LOCAL_WORLD_SIZE", n_workers)),
        "threads_per_worker": torch.get_num_threads(),
    }


def _cpu() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _empty(folder: Path) -> Path:
    """Make the folder, on every worker, or refuse it before any worker writes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not an empty folder: name a new one for this run")
    _meet()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _n_workers() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _meet() -> None:
    if _n_workers() > 1:
        dist.barrier()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


@contextlib.contextmanager
def _workers():
    """Join the process group torchrun announces; alone, there is none to join."""
    if int(os.environ.get("WORLD_SIZE", 1)) < 2:
        yield
        return
    device = _device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _standard(options: argparse.Namespace) -> tuple:
    """Model, one worker's random batch, and what run.json says of the input."""
    torch.manual_seed(_rank())
    device, n = _device(), options.batch
    if options.model == "transformer":
        model, shape = Transformer(), {"sequence_length": 128}
        inputs = torch.randint(8192, (n, 128))
        targets = torch.randint(8192, (n, 128))
    else:
        model, shape = ResNet50(), {"image_size": options.image_size}
        inputs = torch.randn(n, 3, options.image_size, options.image_size)
        targets = torch.randint(1000, (n,))
    return model.to(device), (inputs.to(device), targets.to(device)), shape


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("workbench.capture", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="record a training run")
    run.add_argument("--model", choices=["resnet50", "transformer"], required=True)
    run.add_argument("--batch", type=_positive, default=4, help="samples a worker")
    run.add_argument("--iterations", type=_positive, default=3, help="profiled iterations")
    run.add_argument("--image-size", type=_positive, default=64, help="pixels a side (resnet50)")
    run.add_argument("--out", required=True, help="new folder")
    sweep = commands.add_parser("sweep", help="time all-reduces of doubling sizes")
    sweep.add_argument("--smallest", type=_positive, default=KIB, help="bytes")
    sweep.add_argument("--largest", type=_positive, default=64 * MIB, help="bytes")
    sweep.add_argument("--seconds", type=float, default=1.5, help="repeat a size this long")
    sweep.add_argument("--out", required=True, help="new CSV file")
    for command in (run, sweep):
        command.add_argument("--threads", type=_positive, default=1, help="CPU threads a worker")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    """The command line: `run` records a run folder, `sweep` the price of all-reduces."""
    parser = _parser()
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with _workers():
        try:
            if options.command == "sweep":
                written = sweep_all_reduce(
                    options.out,
                    smallest=options.smallest,
                    largest=options.largest,
                    seconds=options.seconds,
                )
            else:
                model, batch, shape = _standard(options)
                loss = nn.functional.cross_entropy
                iterations = options.iterations
                written = record(
                    model, batch, loss, options.out, iterations=iterations, about=shape
                )
        except ValueError as error:
            parser.error(str(error))
        if _rank() == 0:
            print(f"wrote {written}")


if __name__ == "__main__":
    main()
