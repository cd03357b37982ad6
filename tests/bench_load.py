"""How long a trace takes to load, and in how much memory: ours beside HTA's, for `make bench`.

Each package loads in a process of its own, kept warm: imports and one load first, then the timed
loads, the two packages taking turns. Linux only: memory is read from /proc.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT.parent / "shared/traces/kineto/v100-2rank-small-allreduces/df_index_resolver.json.gz"
FASTER, LEANER, IMPORT_S = 4.0, 0.6, 0.6  # required: times faster, share of the memory, s
IMPORT = """
import time, pandas
start = time.perf_counter()
import workbench.traces
print(time.perf_counter() - start)
"""
MIB = 2**20


class Side:
    """A package in its own warm process."""

    def __init__(self, package: str, python: str, rank: int, file: Path):
        child = str(Path(__file__).with_name("bench_child.py"))
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, child, package, str(rank), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        started = self._answer()
        self.name = f"{package} {started['version']}"
        self.imported = started["imported_bytes"]
        self.seconds: list[float] = []
        self.last: dict = {}

    def load(self) -> None:
        self._process.stdin.write("load\n")
        self._process.stdin.flush()
        self.last = self._answer()
        self.seconds.append(self.last["seconds"])

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._errors.close()

    def row(self) -> dict[str, float]:
        """What is compared, from all loads but the first, which warms up."""
        peak = self.last["peak_bytes"]
        return {
            "load, median, s": statistics.median(self.seconds[1:]),
            "load, fastest, s": min(self.seconds[1:]),
            "load, slowest, s": max(self.seconds[1:]),
            "peak memory of the process, MiB": peak / MIB,
            "peak memory beyond imports, MiB": (peak - self.imported) / MIB,
            "peak memory of its largest child, MiB": self.last["child_bytes"] / MIB,
        }

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"a load broke: {self._process.args}\n{self._errors.read()[-3000:]}")
        return json.loads(line)


def trace() -> Path:
    """The trace to load: the one the requirement names, else the largest that is shipped."""
    if TRACE.exists():
        return TRACE
    shipped = sorted((ROOT / "data/runs").rglob("*.json.gz"), key=lambda path: path.stat().st_size)
    if not shipped:
        raise SystemExit(f"nothing to load: neither {TRACE} nor a trace under data/runs/")
    print(f"{TRACE.name} is not here: a shipped run instead, which no requirement speaks of")
    return shipped[-1]


def rank_of(file: Path) -> int:
    """The rank a trace says it is of: HTA wants to be told."""
    with (gzip.open if file.suffix == ".gz" else open)(file) as opened:
        return json.load(opened).get("distributedInfo", {}).get("rank", 0)


def import_seconds(repeats: int) -> list[float]:
    """What importing workbench.traces adds to a fresh Python that has imported pandas."""
    runs = [subprocess.check_output([sys.executable, "-c", IMPORT]) for _ in range(repeats + 1)]
    return [float(run) for run in runs[1:]]  # the first one warms the disk


def report(ours: Side, peer: Side) -> None:
    left, right = ours.row(), peer.row()
    print(f"{'':40}{ours.name:>18}{peer.name:>18}{'ratio':>9}")
    for what in left:
        if left[what] or right[what]:  # neither has a child when there is one rank
            ratio = f"{left[what] / right[what]:9.3f}" if right[what] else ""
            print(f"{what:40}{left[what]:18.3f}{right[what]:18.3f}{ratio}")
    faster = right["load, median, s"] / left["load, median, s"]
    verdict(f"{faster:.1f} times faster, at least {FASTER:g} required", faster >= FASTER)
    for what in ("peak memory of the process, MiB", "peak memory beyond imports, MiB"):
        share = left[what] / right[what]
        name = what.removesuffix(", MiB")
        verdict(f"{share:.2f} of the {name}, at most {LEANER} required", share <= LEANER)


def verdict(text: str, met: bool) -> None:
    print(f"{'met' if met else 'NOT MET'}: {text}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--peer", required=True, help="the Python that has traceinsight (HTA)")
    options.add_argument("--repeats", type=int, default=5, help="timed loads of each, 3 or more")
    chosen = options.parse_args()
    file = trace()
    print(f"{file.name}, {file.stat().st_size / MIB:.1f} MiB; {chosen.repeats} timed loads each")
    pythons = {"workbench": sys.executable, "hta": chosen.peer}
    sides = [Side(package, python, rank_of(file), file) for package, python in pythons.items()]
    for _ in range(chosen.repeats + 1):
        for side in sides:
            side.load()
    report(*sides)
    for side in sides:
        side.close()
    seconds = statistics.median(import_seconds(chosen.repeats))
    text = f"import of workbench.traces beyond pandas: {seconds:.3f} s, under {IMPORT_S} required"
    verdict(text, seconds < IMPORT_S)


if __name__ == "__main__":
    main()
