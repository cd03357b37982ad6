"""Move every control of an explorer in a page, whatever it is called, and say what went wrong."""

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
STANDS = """handle => [...handle.closest('.widget-inline-hbox').querySelectorAll('.noUi-handle')]
  .map(each => each.getAttribute('aria-valuetext')).join('|')"""
COLUMN_IN = 3.33  # a column of acmart's sigconf, which explorers draw for


class Driven:
    """An explorer of a page, and the faults found in it so far."""

    def __init__(self, explorer, seconds: float = 200):
        self.explorer, self.page, self.seconds = explorer, explorer.page, seconds
        self.faults, self.pictures = [], set()
        self._moves = {"slider": self._slide, "select": self._select, "checkbox": self._switch}
        explorer.scroll_into_view_if_needed()
        self.start = self.now = self.settled()

    def move_all(self):
        """Move each control to both of its ends, and the ones that this brings forth as well."""
        for what, name, control in self._controls():
            ends = (1, 0) if self._is_lower(control) else (0, 1)
            moved = [self._moved(name, self._moves[what], control, end) for end in ends]
            if not any(moved) and self._is_free(what, control):
                self.faults.append(f"{name} did not move")
        if len(self.pictures | {self.start["picture"]}) < 2:
            self.faults.append("no control changed the picture")

    def reset(self):
        """Press "Reset": all is as it was at first, where some control stood elsewhere."""
        for what, name, control in self._controls():
            for end in (0, 1):
                if self.now == self.start:  # ranges and checkboxes end where they began
                    self._moved(name, self._moves[what], control, end)
        self._moved("reset", self._press, "Reset")
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

    def save(self, folder: Path) -> list[Path]:
        """Press "Save figure" and return the files that this wrote into the folder."""
        before = {path: path.stat().st_mtime_ns for path in folder.glob("*")}
        self._press("Save figure")
        end = time.monotonic() + self.seconds
        while "saved" not in (words := self.settled()["words"]) and time.monotonic() < end:
            pass
        new = [path for path in sorted(folder.glob("*"))
               if before.get(path) != path.stat().st_mtime_ns]  # fmt: skip
        found = {"".join(path.suffixes) for path in new}
        if missing := {".pdf", ".svg", ".csv", ".receipt.json"} - found:
            self.faults.append(f"not saved: {', '.join(sorted(missing))}; it says {words!r}")
        for path in new:
            if path.suffix == ".pdf":
                self.faults += pdf_faults(path, {COLUMN_IN})
        return new

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
        """Every control there is, and those that appear while others move, each once."""
        kinds = {"slider": ".noUi-handle", "select": "select", "checkbox": "input[type=checkbox]"}
        for what, selector in kinds.items():
            found = self.explorer.locator(selector)
            number = 0
            while number < found.count():
                control = found.nth(number)
                off = control.locator("xpath=ancestor-or-self::*[@disabled]").count()
                if control.is_visible() and not off:
                    yield what, f"{what} {self._label(control)}", control
                number += 1

    def _label(self, control) -> str:
        row = control.locator("xpath=ancestor::*[contains(@class, 'wb-')][1]")
        return " ".join(re.findall(r"wb-[\w-]+", row.get_attribute("class") or ""))

    def _moved(self, name: str, move, *arguments) -> bool:
        """Move something, wait for what it brings, note what must not be; False: it stood there."""
        if not move(*arguments):
            return False
        end = time.monotonic() + 3
        while self.explorer.evaluate(SHOWN) in (self.now, None) and time.monotonic() < end:
            self.page.wait_for_timeout(10)
        self.now = self.settled()
        self.pictures.add(self.now["picture"])
        if "not done" in self.now["words"] and not self._is_narrow(move, *arguments):
            self.faults.append(f"{name}{arguments[1:]}: {self.now['words']}")
        return True

    def _slide(self, handle, end: int) -> bool:
        before = handle.evaluate(STANDS)
        handle.focus()
        self.page.keyboard.press(("Home", "End")[end])
        return handle.evaluate(STANDS) != before

    def _select(self, select, end: int) -> bool:
        last = select.locator("option").count() - 1
        before, wanted = select.evaluate("each => each.selectedIndex"), (last, 0)[end]
        select.select_option(index=wanted)
        return wanted != before

    def _switch(self, box, end: int) -> bool:
        box.click()
        return True

    def _is_free(self, what: str, control) -> bool:
        """Whether it has more than one position; a slider says so by its ends."""
        if what == "select":
            return control.locator("option").count() > 1
        ends = [control.get_attribute(f"aria-value{end}") for end in ("min", "max")]
        return what == "checkbox" or ends[0] != ends[1]

    def _is_lower(self, control) -> bool:
        """Whether it is the lower of a range's two ends, which then ends where it began."""
        return (
            "noUi-handle-lower" in (control.get_attribute("class") or "") and _n_ends(control) > 1
        )

    def _is_narrow(self, move, control=None, *_) -> bool:
        """Whether a range was moved together to one position: that may be refused in words."""
        told = self.now["words"]
        return move == self._slide and _n_ends(control) > 1 and "not done. ValueError" in told

    def _press(self, name: str) -> bool:
        self.explorer.get_by_role("button", name=name).click()
        return True


def _n_ends(handle) -> int:
    return handle.evaluate(STANDS).count("|") + 1


def pdf_faults(path: Path, widths_in: set[float]) -> list[str]:
    """What a venue would refuse of a PDF: fonts left out or of Type 3, and another width."""
    fonts = _told("pdffonts", path).splitlines()[2:]
    faults = [] if fonts else [f"{path.name}: no fonts"]
    for line in fonts:
        kind, (embedded, *_) = line[37:54].strip(), line[71:].split()
        if embedded != "yes" or "Type 3" in line:
            faults.append(f"{path.name}: font {line.split()[0]} is {kind}, embedded {embedded}")
    (width_pt,) = re.findall(r"^Page size: +([\d.]+) x", _told("pdfinfo", path), re.M)
    if min(abs(float(width_pt) / 72 - width) for width in widths_in) > 0.01:
        faults.append(f"{path.name}: {float(width_pt) / 72:.3f} in wide, expected {widths_in}")
    return faults


def _told(command: str, path: Path) -> str:
    run = subprocess.run([command, str(path)], capture_output=True, text=True, check=True)
    return run.stdout
