"""Move every control of an explorer in a page, whatever it is called, and report faults."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

# What an explorer shows, as text and as a sum of the picture's bytes: a picture that stays the
# same is the same to the last byte.
SHOWN = """async box => {
  const text = name => box.querySelector(name)?.textContent ?? '';
  try {
    const answer = await fetch(box.querySelector('img.wb-image').src);
    let sum = 7;
    for (const byte of new Uint8Array(await answer.arrayBuffer())) sum = (sum * 31 + byte) | 0;
    return {picture: sum, words: text('.wb-status'), below: text('.wb-below'),
            code: text('.wb-code pre')};
  } catch (error) { return null; }  // replaced while it was looked at
}"""
POSITIONS = """handle => [...handle.closest('.widget-inline-hbox').querySelectorAll('.noUi-handle')]
  .map(each => each.getAttribute('aria-valuetext'))"""
KINDS = {"slider": ".noUi-handle", "select": "select", "checkbox": "input[type=checkbox]"}
COLUMN_IN = 3.33  # a column of acmart's sigconf, which explorers draw for


class Driven:
    """An explorer of a page, and the faults found in it so far."""

    def __init__(self, explorer, seconds: float = 200):
        self.explorer, self.page, self.seconds = explorer, explorer.page, seconds
        self.faults, self.pictures = [], set()
        explorer.scroll_into_view_if_needed()
        self.start = self.now = self.settled()

    def move_all(self):
        """Move each control to both of its ends, including controls that appear meanwhile."""
        for kind, name, control in self._controls():
            # The lower of a range's two ends ends where it began.
            lower = "noUi-handle-lower" in (control.get_attribute("class") or "")
            ends = (1, 0) if lower and _is_range(control) else (0, 1)
            moved = [self._moved(kind, name, control, end) for end in ends]
            if not any(moved) and _is_free(kind, control):
                self.faults.append(f"{name} did not move")
        if len(self.pictures | {self.start["picture"]}) < 2:
            self.faults.append("no control changed the picture")

    def reset(self):
        """Press "Reset", away from the start: everything is as it was at first."""
        for kind, name, control in self._controls():
            for end in (0, 1):
                if self.now == self.start:  # ranges and checkboxes end where they began
                    self._moved(kind, name, control, end)
        self._press("Reset")
        self._wait("reset")
        self.faults += [
            f"reset: other {part}: {self.now[part]!r}, at first {self.start[part]!r}"
            for part in ("picture", "words", "code")
            if self.now[part] != self.start[part]
        ]

    def copy(self) -> str:
        """Press "Copy as code" and return what the clipboard then holds."""
        self._press("Copy as code")
        self.page.wait_for_timeout(100)
        held, shown = self.page.evaluate("navigator.clipboard.readText()"), self.settled()["code"]
        if held.strip() != shown.strip() or not held.strip():
            self.faults.append(f"copied {held!r}, shown {shown!r}")
        if not self.explorer.locator(".wb-code pre").is_visible():
            self.faults.append("the code copied is not shown")
        return held

    def save(self, folder: Path):
        """Press "Save figure": it writes each format into the folder, fit for the venue."""
        before = {path: path.stat().st_mtime_ns for path in folder.glob("*")}
        self._press("Save figure")
        end = time.monotonic() + self.seconds
        while "saved" not in (words := self.settled()["words"]) and time.monotonic() < end:
            pass
        new = [p for p in sorted(folder.glob("*")) if before.get(p) != p.stat().st_mtime_ns]
        found = {"".join(path.suffixes) for path in new}
        if missing := {".pdf", ".svg", ".csv", ".receipt.json"} - found:
            self.faults.append(f"not saved: {', '.join(sorted(missing))}; it says {words!r}")
        for path in (path for path in new if path.suffix == ".pdf"):
            self.faults += pdf_faults(path, {COLUMN_IN})

    def settled(self) -> dict:
        """Return what is shown once it no longer changes."""
        shown, since, end = None, time.monotonic(), time.monotonic() + self.seconds
        while time.monotonic() < end:
            now = self.explorer.evaluate(SHOWN)
            if now != shown:
                shown, since = now, time.monotonic()
            elif shown and time.monotonic() - since > 0.1:
                return shown
            self.page.wait_for_timeout(20)
        raise TimeoutError(f"an explorer still changes after {self.seconds} s")

    def _controls(self) -> Iterator[tuple]:
        """Yield every control, and those that appear while others move, each once."""
        for kind, selector in KINDS.items():
            found, number = self.explorer.locator(selector), 0
            while number < found.count():
                control = found.nth(number)
                off = control.locator("xpath=ancestor-or-self::*[@disabled]").count()
                if control.is_visible() and not off:
                    row = control.locator("xpath=ancestor::*[contains(@class, 'wb-')][1]")
                    classes = re.findall(r"wb-[\w-]+", row.get_attribute("class") or "")
                    yield kind, f"{kind} {' '.join(classes)}", control
                number += 1

    def _moved(self, kind: str, name: str, control, end: int) -> bool:
        """Move a control to one of its ends; return False if it was there already."""
        if kind == "checkbox":
            control.click()
        elif kind == "select":
            last = control.locator("option").count() - 1
            before, wanted = control.evaluate("each => each.selectedIndex"), (last, 0)[end]
            control.select_option(index=wanted)
            if wanted == before:
                return False
        else:
            before = control.evaluate(POSITIONS)
            control.focus()
            self.page.keyboard.press(("Home", "End")[end])
            if control.evaluate(POSITIONS) == before:
                return False
        # A range of one position may be refused in words.
        self._wait(name, "ValueError" if kind == "slider" and _is_range(control) else None)
        return True

    def _wait(self, name: str, allowed: str | None = None):
        """Wait for what a move brings, and note a failure other than an allowed one."""
        end = time.monotonic() + 3
        while self.explorer.evaluate(SHOWN) in (self.now, None) and time.monotonic() < end:
            self.page.wait_for_timeout(10)
        self.now = self.settled()
        self.pictures.add(self.now["picture"])
        words = self.now["words"]
        if "not done" in words and not (allowed and f"not done. {allowed}" in words):
            self.faults.append(f"{name}: {words}")

    def _press(self, name: str):
        self.explorer.get_by_role("button", name=name).click()


def _is_range(handle) -> bool:
    return len(handle.evaluate(POSITIONS)) > 1


def _is_free(kind: str, control) -> bool:
    """Whether a control has more than one position; a slider says so by its ends."""
    if kind == "select":
        return control.locator("option").count() > 1
    ends = [control.get_attribute(f"aria-value{end}") for end in ("min", "max")]
    return kind == "checkbox" or ends[0] != ends[1]


def pdf_faults(path: Path, widths_in: set[float]) -> list[str]:
    """Return what a venue would refuse of a PDF: missing or Type 3 fonts, another width."""
    fonts = _output("pdffonts", path).splitlines()[2:]
    faults = [] if fonts else [f"{path.name}: no fonts"]
    for line in fonts:
        kind, (embedded, *_) = line[37:54].strip(), line[71:].split()
        if embedded != "yes" or "Type 3" in line:
            faults.append(f"{path.name}: font {line.split()[0]} is {kind}, embedded {embedded}")
    (width_pt,) = re.findall(r"^Page size: +([\d.]+) x", _output("pdfinfo", path), re.M)
    if min(abs(float(width_pt) / 72 - width) for width in widths_in) > 0.01:
        faults.append(f"{path.name}: {float(width_pt) / 72:.3f} in wide, expected {widths_in}")
    return faults


def _output(command: str, path: Path) -> str:
    return subprocess.run([command, path], capture_output=True, text=True, check=True).stdout
