"""A real JupyterLab, Voila and Chromium for tests: on loopback, without any state of the user's."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update",
         "--disable-dev-shm-usage"]  # fmt: skip
TEMPLATES = Path(__file__).parent / "voila"  # a JUPYTER_PATH
PATIENCE_S = 600  # only ends a hang: a busy machine may be slow
expect.set_options(timeout=60_000)
FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
           "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "MPLCONFIGDIR")  # fmt: skip
NEWS = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": NEWS,
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    # Cells out of sight would otherwise not be in the page at all.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}

# Resolves to true when a cell can be run. The toolbar calls the kernel idle before there is one,
# and commands are registered late, so each layer is asked itself.
READY = """async () => {
  const app = window.jupyterapp;
  if (!app) return false;
  await app.restored;
  const panel = app.shell.currentWidget;
  if (!panel?.sessionContext) return false;
  await panel.context.ready;
  await panel.sessionContext.ready;
  const kernel = panel.sessionContext.session?.kernel;
  if (!kernel || kernel.connectionStatus !== 'connected') return false;
  await kernel.info;
  return kernel.status === 'idle' && app.commands.hasCommand('notebook:run-all-cells')
    && app.commands.isEnabled('notebook:run-all-cells');
}"""
# evaluate() has no time limit of its own: each promise races a timer.
POLL = f"""() => Promise.race([
  ({READY})(), new Promise(done => setTimeout(() => done(false), 30000))])"""
RUN_ALL = """limit => Promise.race([
  window.jupyterapp.commands.execute('notebook:run-all-cells'),
  new Promise((_, fail) => setTimeout(() => fail(new Error('run all: too slow')), limit))])"""


@contextmanager
def chromium() -> Iterator:
    """Start the browser; without one the test fails in CI and is skipped elsewhere."""
    if not CHROMIUM.exists():
        reason = f"{CHROMIUM} is missing: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


def watched(browser, problems: list, **options):
    """Open a page that adds whatever it complains of to `problems`."""
    page = browser.new_page(viewport={"width": 1300, "height": 1300}, **options)
    page.set_default_timeout(1000 * PATIENCE_S)
    page.on("pageerror", lambda error: problems.append(f"page: {error}"))
    page.on("requestfailed", lambda request: problems.append(f"request: {request.url}"))
    page.on("console", lambda line: line.type == "error" and problems.append(line.text))
    return page


@contextmanager
def lab(root: Path, state: Path) -> Iterator[tuple[str, str]]:
    """Serve the folder `root` and yield (address, token); all that Jupyter writes is in `state`."""
    port, token = _free_port(), secrets.token_hex(16)
    command = [
        "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={root}", "--expose-app-in-browser", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with _served(command, f"{address}/api/status?token={token}", state):
        yield address, token


@contextmanager
def voila(root: Path, state: Path) -> Iterator[str]:
    """Serve the notebooks of a folder as pages with widgets, and yield the address.

    Voila's own template asks a public host for its icons; that of tests/voila leaves this out.
    """
    port = _free_port()
    command = [
        "voila", str(root), "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1",
        "--template=offline", "--show_tracebacks=True",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with _served(command, f"{address}/voila/static/voila.js", state, JUPYTER_PATH=str(TEMPLATES)):
        yield address


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _served(command: list[str], address: str, state: Path, **extra: str) -> Iterator:
    log = state / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen([sys.executable, "-m", *command], env=_environment(state) | extra,
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                  start_new_session=True)  # fmt: skip
        try:
            _until(lambda: _answers(server, address), f"{address} does not answer; see {log}")
            yield
        finally:  # with its kernels, which are of its process group
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _until(done: Callable[[], bool], failure: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(failure)
        time.sleep(0.1)


def _answers(server, address: str) -> bool:
    if server.poll() is not None:
        raise RuntimeError(f"{server.args} ended at its start")
    try:
        with urllib.request.urlopen(address, timeout=10):
            return True
    except OSError:
        return False


def _environment(state: Path) -> dict:
    folders = {name: str(state / name.lower()) for name in FOLDERS}
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    overrides = Path(folders["JUPYTER_CONFIG_DIR"]) / "labconfig" / "default_setting_overrides.json"
    overrides.parent.mkdir(exist_ok=True)
    overrides.write_text(json.dumps(SETTINGS))
    # Without a path of the user's, `python3` can only be the kernel of this Python.
    kept = {name: value for name, value in os.environ.items() if name != "JUPYTER_PATH"}
    return kept | folders | {"JUPYTER_PREFER_ENV_PATH": "1"}


def open_notebook(page, address: str, token: str, path: str) -> None:
    """Open a notebook in the page and return when its kernel can run cells."""
    page.goto(f"{address}/lab/tree/{path}?token={token}&reset")
    _until(lambda: page.evaluate(POLL), f"{path}: no kernel is ready")


def run_all(page) -> bool:
    """Run all cells; True when all succeeded."""
    return page.evaluate(RUN_ALL, 1000 * PATIENCE_S)
