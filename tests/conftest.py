"""What several tests share: real traces, small traces written on the spot, and refusals."""

import gzip
import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

from workbench.base.checks import shown

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
LONGEST = ("test_notebooks.py", "test_own_runs.py", "test_browser.py", "test_study.py")
_EXHAUSTIVE = pytest.StashKey[Counter]()  # files with tests that are left out, and how many
settings.register_profile("few", max_examples=25)


def pytest_configure(config):
    config.stash[_EXHAUSTIVE] = Counter()
    if config.option.markexpr == "not all":
        settings.load_profile("few")


def pytest_collection_modifyitems(items):
    """Begin with the longest files, so that no worker ends long after the others."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_deselected(items):
    for item in items:
        if item.get_closest_marker("all"):
            item.config.stash[_EXHAUSTIVE][item.path.name] += 1


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["exhaustive"] = dict(session.config.stash[_EXHAUSTIVE])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    output = getattr(node, "workeroutput", {})  # none if the worker crashed
    node.config.stash[_EXHAUSTIVE] |= output.get("exhaustive", {})  # all workers count the same


def pytest_terminal_summary(terminalreporter, config):
    left_out = config.stash[_EXHAUSTIVE]
    if left_out and config.option.markexpr == "not all":
        files = ", ".join(f"{name} ({number})" for name, number in sorted(left_out.items()))
        terminalreporter.write_line(f"make test-all adds {left_out.total()} tests: {files}")


@pytest.fixture
def rng():
    return np.random.default_rng(20220425)


def published(name: str) -> pd.DataFrame:
    """Return a table that others published, from the folder next to the checkout."""
    return pd.read_csv(at_hand("published", name), comment="#")


def at_hand(*parts: str) -> Path:
    """Return a path in the folder next to the checkout; without the folder, skip the test."""
    if not SHARED.is_dir():
        pytest.skip("no folder of real traces and tables next to the checkout (../shared)")
    return SHARED.joinpath(*parts)


@pytest.fixture(scope="session")
def shared():
    return at_hand()


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    """Return a function that executes a notebook once per test run, for all workers."""
    from run_notebooks import execute_once

    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return partial(execute_once, common)


@pytest.fixture(scope="session")
def browser():
    from lab_server import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def write_trace(tmp_path):
    """Write Chrome-trace events as a Kineto file; returns its path."""

    def write(events, name="trace.json", **header):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**header, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


def complete(cat, name, ts, dur, *, pid=0, tid=1, **args):
    """A complete event (ph X) as Kineto writes it; times in us."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return event | {"args": args}


def launched(name, ts, dur, launch_ts, correlation, *, stream=7, thread=1, **args):
    """A kernel and the host call that launched it."""
    runtime = complete(
        "cuda_runtime", "cudaLaunchKernel", launch_ts, 2, tid=thread, correlation=correlation
    )
    kernel = complete(
        "kernel", name, ts, dur, tid=stream, stream=stream, correlation=correlation, **args
    )
    return [runtime, kernel]


_ANY = object()


def refusal(call, argument: str, value=_ANY) -> str:
    """Assert that a call is refused: a ValueError that names the argument and shows the value.

    Returns the message, for those who look for more than that.
    """
    with pytest.raises(ValueError) as caught:
        call()
    text = str(caught.value)
    name, _, rest = text.partition(":")
    assert argument in name, text
    if value is not _ANY:
        assert (value if isinstance(value, str) else shown(value)) in rest, text
    return text
