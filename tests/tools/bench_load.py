"""Time and memory of loading a trace, compared with other tools, for `make bench`.

Each side loads in a separate process, kept warm: imports and one load first, then the timed
loads, the sides taking turns, then one load during which memory is sampled. Memory is that of the
process and its children together: the sum of their proportional set sizes, each 10 ms, and never
less than the exact peak of the process itself. Linux only: it is read from /proc.
"""

import argparse
import gzip
import inspect
import json
import re
import select
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT.parent / "shared/traces/kineto/v100-2rank-small-allreduces/df_index_resolver.json.gz"
COPIES = 8
# Required: times faster than HTA, than JsonProfile; share of HTA's memory; times the floor; times
# faster from the cache; seconds to import.
HTA, JSON_PROFILE, MEMORY, FLOOR, CACHE, IMPORT_S = 8.0, 3.0, 0.45, 4.0, 10.0, 0.6
IMPORT = """
import time, pandas
start = time.perf_counter()
import workbench.traces
print(time.perf_counter() - start)
"""
MIB = 2**20
UNPACKED = ("workbench_unpacked", "json_profile")  # JsonProfile does not read gzip
_RANK = re.compile(rb'("distributedInfo":\s*\{[^}]*"rank":\s*)\d+')
_WORLD = re.compile(rb'("distributedInfo":\s*\{[^}]*"world_size":\s*)\d+')


class Side:
    """A way to load, in a separate warm process."""

    def __init__(self, side: str, python: str, files: dict[int, Path]):
        child = str(Path(__file__).with_name("bench_child.py"))
        named = json.dumps({rank: str(file) for rank, file in files.items()})
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, child, side, named],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        started = self._answer()
        self.side, self.name = side, started["name"]
        self.imported = started["imported_bytes"]
        self.seconds: list[float] = []
        self.peak = 0.0

    def load(self) -> None:
        self._ask()
        self.seconds.append(self._answer()["seconds"])

    def measure_memory(self) -> None:
        """One more load, with the memory of all its processes sampled."""
        self._ask()
        while not select.select([self._process.stdout], [], [], 0.01)[0]:
            self.peak = max(self.peak, sum(map(proportional, family(self._process.pid))))
        self.peak = max(self.peak, self._answer()["peak_bytes"])

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._errors.close()

    @property
    def median(self) -> float:
        """Seconds of a load, the first one left out: it warms up."""
        return statistics.median(self.seconds[1:])

    def row(self) -> str:
        timed = self.seconds[1:]
        numbers = f"{self.median:9.3f}{min(timed):9.3f}{max(timed):9.3f}"
        return (
            f"{self.name:38}{numbers}{self.peak / MIB:9.0f}{(self.peak - self.imported) / MIB:9.0f}"
        )

    def _ask(self) -> None:
        self._process.stdin.write("load\n")
        self._process.stdin.flush()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"a load broke: {self._process.args}\n{self._errors.read()[-3000:]}")
        return json.loads(line)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for each in found:
        try:
            tasks = Path(f"/proc/{each}/task").glob("*/children")
            found += [int(child) for task in tasks for child in task.read_text().split()]
        except OSError:
            pass  # it has ended meanwhile
    return found


def proportional(pid: int) -> float:
    """Memory of a process in bytes, what it shares with others divided among them; 0 once ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) * 1024.0 if found else 0.0


def trace() -> Path:
    """The trace to load: the one the requirement names, else the largest that is shipped."""
    if TRACE.exists():
        return TRACE
    shipped = sorted((ROOT / "data/runs").rglob("*.json.gz"), key=lambda path: path.stat().st_size)
    if not shipped:
        raise SystemExit(f"nothing to load: neither {TRACE} nor a trace under data/runs/")
    print(f"{TRACE.name} is not here: a shipped run instead, which no requirement speaks of")
    return shipped[-1]


def copies(file: Path, n: int, folder: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """The trace as ranks 0 to n-1 of a run, packed and unpacked, each in a folder of its own."""
    text = gzip.decompress(file.read_bytes())
    packed, plain = {}, {}
    for kind in ("packed", "plain"):
        (folder / kind).mkdir(parents=True)
    for rank in range(n):
        text = _WORLD.sub(rb"\g<1>%d" % n, _RANK.sub(rb"\g<1>%d" % rank, text, count=1), count=1)
        packed[rank] = folder / "packed" / f"rank{rank}.json.gz"
        packed[rank].write_bytes(gzip.compress(text, 6))
        plain[rank] = folder / "plain" / f"rank{rank}.json"
        plain[rank].write_bytes(text)
    return packed, plain


def compare(packed: dict, plain: dict, peer: str, repeats: int) -> None:
    """Load by every side in turns; print what each took, and whether it is enough."""
    pythons = {"workbench": sys.executable, "hta": peer, "floor": peer}
    pythons |= {"workbench_unpacked": sys.executable, "json_profile": sys.executable}
    if len(packed) > 1:
        pythons["workbench_2_processes"] = sys.executable
    if has_cache():
        pythons["workbench_cache"] = sys.executable
    found = {
        side: Side(side, python, plain if side in UNPACKED else packed)
        for side, python in pythons.items()
    }
    for _ in range(repeats + 1):
        for side in found.values():
            side.load()
    for side in found.values():
        side.measure_memory()
    report(found)
    for side in found.values():
        side.close()


def report(found: dict[str, Side]) -> None:
    print(f"{'':38}{'load, s':>9}{'fastest':>9}{'slowest':>9}{'peak MiB':>9}{'-imports':>9}")
    for side in found.values():
        print(side.row())
    ours = [side for name, side in found.items() if name.startswith("workbench")]
    for side in ours:
        if side.side == "workbench_cache":
            faster(side, found["workbench"], CACHE)
            continue
        if side.side == "workbench_unpacked":
            faster(side, found["json_profile"], JSON_PROFILE)
            continue
        faster(side, found["hta"], HTA)
        faster(side, found["json_profile"], JSON_PROFILE)
        share = side.peak / found["hta"].peak
        verdict(
            f"{side.name}: {share:.2f} of the peak memory of HTA, at most {MEMORY} required",
            share <= MEMORY,
        )
        times = side.median / found["floor"].median
        verdict(f"{side.name}: {times:.1f} times the floor, at most {FLOOR:g}", times <= FLOOR)
    if not has_cache():
        print("left out: reopening from a cache, which load_run has no parameter for")


def faster(side: Side, other: Side, required: float) -> None:
    times = other.median / side.median
    text = (
        f"{side.name}: {times:.1f} times faster than {other.name}, at least {required:g} required"
    )
    verdict(text, times >= required)


def verdict(text: str, met: bool) -> None:
    print(f"{'met' if met else 'NOT MET'}: {text}")


def has_cache() -> bool:
    from workbench.traces import load_run

    return "cache" in inspect.signature(load_run).parameters


def import_seconds(repeats: int) -> list[float]:
    """What importing workbench.traces adds to a fresh Python that has imported pandas."""
    runs = [subprocess.check_output([sys.executable, "-c", IMPORT]) for _ in range(repeats + 1)]
    return [float(run) for run in runs[1:]]  # the first one warms the disk


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--peer", required=True, help="the Python that has traceinsight (HTA)")
    options.add_argument("--repeats", type=int, default=5, help="timed loads of each, 3 or more")
    chosen = options.parse_args()
    file = trace()
    for n in (1, COPIES):
        with tempfile.TemporaryDirectory() as folder:
            packed, plain = copies(file, n, Path(folder))
            size = sum(path.stat().st_size for path in plain.values()) / 1e6
            repeats = chosen.repeats if n == 1 else max(3, chosen.repeats // 2)
            print(
                f"\n{file.name} as {n} rank(s): {size:.0f} MB of JSON; {repeats} timed loads each"
            )
            compare(packed, plain, chosen.peer, repeats)
    seconds = statistics.median(import_seconds(chosen.repeats))
    text = f"import of workbench.traces beyond pandas: {seconds:.3f} s, under {IMPORT_S} required"
    verdict(text, seconds < IMPORT_S)


if __name__ == "__main__":
    main()
