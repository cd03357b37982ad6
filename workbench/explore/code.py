"""Python text that repeats what an explorer shows: what was chosen, and the calls that draw it."""

import ast
from html import escape
from textwrap import indent

from .. import costs, figures, fits, fusion, timeline, traces, whatif

_PYTHON = {"replace": "from dataclasses import replace"}
_OTHERS = {
    "plt": "import matplotlib.pyplot as plt",
    "np": "import numpy as np",
    "pd": "import pandas as pd",
}
_OURS = {"workbench": ("GBIT", "MIB", "US")} | {
    door.__name__: door.__all__ for door in (costs, figures, fits, fusion, timeline, traces, whatif)
}
WIDTH = 88  # columns: a longer call is broken into several lines


def cell_text(given: str, body: str) -> str:
    """Return a cell: a comment on what it starts from, the imports that body needs, and body."""
    names = [node for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)]
    used = {node.id for node in names} - {n.id for n in names if isinstance(n.ctx, ast.Store)}
    groups = [
        [line for name, line in group.items() if name in used] for group in (_PYTHON, _OTHERS)
    ]
    found = {module: sorted(used & set(names)) for module, names in _OURS.items()}
    groups.append([f"from {m} import {', '.join(names)}" for m, names in found.items() if names])
    imports = "\n\n".join("\n".join(lines) for lines in groups if lines)
    return f"# given: {given}\n{imports}\n\n{body.strip()}\n"


def call(name: str, *arguments: str) -> str:
    """Return a call as text, with one line per argument if it is long."""
    flat = f"{name}({', '.join(arguments)})"
    if len(flat) <= WIDTH and "\n" not in flat:
        return flat
    lines = "".join(f"{each},\n" for each in arguments)
    return f"{name}(\n{indent(lines, '    ')})"


def on_one_axes(body: str, settings: str = "") -> str:
    """Return the lines that draw on one axes of the paper's size."""
    return f"with plt.rc_context(paper({settings})):\n    fig, ax = plt.subplots()\n    {body}"


# Copies the text in this explorer's .wb-code, and shows it. A page that is neither local nor https
# lacks navigator.clipboard.
_COPY = """
const box = this.closest('.wb-explorer'), code = box.querySelector('.wb-code pre');
box.classList.add('wb-shows');
const older = () => {
  getSelection().selectAllChildren(code);
  return document.execCommand('copy') ? Promise.resolve() : Promise.reject();
};
const clipboard = navigator.clipboard;
(clipboard ? clipboard.writeText(code.textContent).catch(older) : older())
  .then(() => 'Copied', () => 'Copy it from below').then(text => {
    this.lastElementChild.textContent = text;
    setTimeout(() => { this.lastElementChild.textContent = 'Copy as code'; }, 2000);
  });
"""
# Python cannot set the accessible names of a picture and of a slider's handles.
_NAME = """
const label = tries => {
  const box = this.closest('.wb-explorer'), image = box && box.querySelector('img.wb-image');
  const handles = box ? [...box.querySelectorAll('.noUi-handle')] : [];
  if (!image || !handles.every(each => each.closest('.widget-inline-hbox').querySelector('label')))
    return tries && setTimeout(label, 100, tries - 1);
  image.alt = box.querySelector('.wb-alt').textContent;
  for (const slider of box.querySelectorAll('.widget-inline-hbox')) {
    const text = slider.querySelector('label'), ends = slider.querySelectorAll('.noUi-handle');
    if (!text) continue;
    ends.forEach((handle, i) => {
      const end = ends.length > 1 ? [', from', ', to'][i] : '';
      handle.setAttribute('aria-label', text.textContent + end);
      handle.title = text.title;
    });
    const readout = slider.querySelector('.widget-readout');
    if (readout) readout.setAttribute('aria-label', text.textContent + ', to be typed');
  }
};
setTimeout(label, 0, 50);
"""
_HIDE = ".wb-explorer:not(.wb-shows) .wb-code {display: none} .wb-code pre {white-space: pre-wrap}"

COPY = (
    '<button type="button" class="jupyter-widgets jupyter-button widget-button" style="margin: 0" '
    'title="copy Python code that draws this picture again, and show it below" '
    f'onclick="{escape(_COPY)}"><i class="fa fa-copy center"></i> <span>Copy as code</span>'
    "</button>"
)
CODE = (
    "<pre>{code}</pre><span class='wb-alt' hidden>{alt}</span>"
    + f'<style onload="{escape(_NAME)}">{_HIDE}</style>'.replace("{", "{{").replace("}", "}}")
)
