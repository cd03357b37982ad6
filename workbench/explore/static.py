"""An explorer as a page without a kernel: a grid of pictures drawn in advance, which still moves.

The page loads nothing. Without JavaScript it shows the first picture. It works in JupyterLab too,
whose shortcuts do not get the keys that the controls need.
"""

import io
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from PIL import Image

_COLOURS = 64  # in the palette of a picture: greys at edges of text, and hues of a figure


class Axis(NamedTuple):
    """A control of the page: label, tooltip, positions in words, and the one at the start."""

    label: str
    tooltip: str
    positions: Sequence[str]
    start: int
    look: str  # range, select or checkbox


class Cell(NamedTuple):
    """What the page shows at one place of the grid; words and below are HTML, alt and why text."""

    png: bytes = b""
    alt: str = ""
    words: str = ""
    below: str = ""
    why: str = ""  # why it cannot be shown; empty if it can


@dataclass(frozen=True)
class Static:
    """A piece of HTML that a notebook shows and that `save` writes as a page."""

    html: str
    title: str

    def _repr_html_(self) -> str:
        return self.html

    def save(self, path) -> Path:
        """Write a page that any browser opens, and return its path."""
        path, title = Path(path), escape(self.title)
        head = f'<meta charset="utf-8"><title>{title}</title>'
        viewport = '<meta name="viewport" content="width=device-width">'
        page = f'<!doctype html><html lang="en"><head>{head}{viewport}</head><body>{self.html}'
        path.write_text(f"{page}</body></html>\n", encoding="utf-8")
        return path


def static_page(axes: Sequence[Axis], cells: Sequence[Cell], fixed: dict, title: str) -> Static:
    """Return the page of a grid with one cell per combination; the last axis runs fastest.

    fixed : positions of the other controls by label, both in words
    """
    start = 0
    for axis in axes:
        start = start * len(axis.positions) + axis.start
    controls = "".join(f"<div><label>{_control(axis)}</label></div>" for axis in axes)
    note = f"A grid of {len(cells)} pictures drawn in advance: it moves without a kernel."
    if fixed:
        note += f" Fixed: {', '.join(f'{label} {value}' for label, value in fixed.items())}."
    cell, picture = cells[start], _shown(cells[start], cells)
    return Static(
        f'<div class="wb-static"><style>{_STYLE}</style>'
        f"<fieldset disabled>{controls}</fieldset>"
        f'<p class="wb-still">The controls need JavaScript.</p>{picture}'
        f'<p class="wb-words" aria-live="polite">{cell.words}</p>'
        f'<div class="wb-told">{cell.below}</div><p class="wb-grid">{escape(note)}</p>'
        f'<script type="application/json">{_data(axes, cells)}</script>'
        f"<script>{_SCRIPT}</script></div>",
        title,
    )


def palette(rgba) -> bytes:
    """Return pixels as a PNG of few colours, a third of the bytes."""
    image = Image.fromarray(rgba).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    png = io.BytesIO()
    image.save(png, format="png", optimize=True)
    return png.getvalue()


def _control(axis: Axis) -> str:
    """Return a label's text and its control; labels may come from files, so they are escaped."""
    tooltip, last = escape(axis.tooltip), len(axis.positions) - 1
    common = f'data-axis title="{tooltip}" autocomplete="off"'
    if axis.look == "checkbox":
        checked = " checked" if axis.start else ""
        return f'<span></span><input type="checkbox" {common}{checked}> {escape(axis.label)}'
    label = f"<span>{escape(axis.label)}</span>"
    if axis.look == "select":
        options = "".join(
            f"<option{' selected' if i == axis.start else ''}>{escape(position)}</option>"
            for i, position in enumerate(axis.positions)
        )
        return f"{label}<select {common}>{options}</select>"
    now, names = escape(axis.positions[axis.start]), escape(json.dumps(list(axis.positions)))
    return (
        f'{label}<input type="range" min="0" max="{last}" value="{axis.start}" {common} '
        f'aria-valuetext="{now}" data-names="{names}"><output>{now}</output>'
    )


def _shown(cell: Cell, cells: Sequence[Cell]) -> str:
    """Return the first picture, or why there is none, in a place of constant size."""
    example = cell.png or next((each.png for each in cells if each.png), b"")
    width, height = Image.open(io.BytesIO(example)).size if example else (666, 412)
    source = f"data:image/png;base64,{b64encode(cell.png).decode()}"
    return (
        f'<div class="wb-picture"><img width="{width}" height="{height}" src="{source}" '
        f'alt="{escape(cell.alt)}"{" hidden" if cell.why else ""}>'
        f'<p class="wb-why"{"" if cell.why else " hidden"}>{escape(cell.why)}</p></div>'
    )


def _data(axes: Sequence[Axis], cells: Sequence[Cell]) -> str:
    """Return what the script reads; equal pictures are included once."""
    pictures = {cell.png: None for cell in cells if cell.png}
    place = {png: i for i, png in enumerate(pictures)}
    table = [
        [place.get(cell.png, -1), cell.alt, cell.words, cell.below, cell.why] for cell in cells
    ]
    data = {
        "sizes": [len(axis.positions) for axis in axes],
        "pictures": [b64encode(png).decode() for png in pictures],
        "cells": table,
    }
    return json.dumps(data).replace("<", "\\u003c")  # no name can end the script element


_STYLE = """
.wb-static {font: 14px/1.4 sans-serif; max-width: 680px}
.wb-static fieldset {border: 0; padding: 0; margin: 0 0 .5em}
.wb-static label {display: flex; align-items: center; gap: .6em; margin: .2em 0}
.wb-static label > span:first-child {flex: 0 0 11em; text-align: right}
.wb-static input[type=range] {flex: 0 1 22em}
.wb-static .wb-picture img {max-width: 100%; height: auto}
.wb-static .wb-picture img[hidden] {display: block; visibility: hidden}
.wb-static .wb-picture {position: relative}
.wb-static .wb-why {position: absolute; top: 30%; margin: 0 2em; color: #B00020; font-weight: bold}
.wb-static .wb-told {overflow-x: auto}
.wb-static .wb-grid {color: #595959; font-size: 12px}
"""

# Works on the element that contains the script, so that several explorers can share a page.
_SCRIPT = """
(root => {
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const inputs = [...root.querySelectorAll('[data-axis]')], find = name => root.querySelector(name);
  const place = input => input.type === 'checkbox' ? +input.checked
    : input.tagName === 'SELECT' ? input.selectedIndex : +input.value;
  const show = () => {
    const at = inputs.reduce((before, input, k) => before * data.sizes[k] + place(input), 0);
    const [picture, alt, words, below, why] = data.cells[at], image = find('img');
    if (picture >= 0) image.src = 'data:image/png;base64,' + data.pictures[picture];
    image.alt = alt;
    image.hidden = why !== '';
    find('.wb-why').hidden = why === '';
    find('.wb-why').textContent = why;
    find('.wb-words').innerHTML = words;
    find('.wb-told').innerHTML = below;
    for (const input of inputs) if (input.type === 'range') {
      const name = JSON.parse(input.dataset.names)[input.value];
      input.setAttribute('aria-valuetext', name);
      input.nextElementSibling.textContent = name;
    }
  };
  find('fieldset').disabled = false;
  find('.wb-still').remove();
  root.addEventListener('input', show);
  root.addEventListener('keydown', event => event.stopPropagation());
})(document.currentScript.parentElement);
"""
