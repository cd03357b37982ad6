"""Python text that does again what an explorer shows: what was chosen, and the calls that draw."""

import ast
from html import escape
from textwrap import indent

IMPORTS = {  # where each name that such text may use is at home
    "dataclasses": ("replace",),
    "matplotlib.pyplot": ("plt",),
    "numpy": ("np",),
    "pandas": ("pd",),
    "workbench": ("GBIT", "MIB", "US"),
    "workbench.costs": (
        "FlatRing", "HalvingDoubling", "Hierarchical", "Interpolated", "Link", "Piecewise", "Ring",
        "Tree",
    ),
    "workbench.figures": (
        "draw_comparison", "draw_fit", "draw_fusion_curve", "draw_residuals", "draw_run",
        "draw_scaling", "draw_step", "draw_timeline", "paper",
    ),
    "workbench.fits": ("curves", "fit_collective", "residuals"),
    "workbench.fusion": (
        "DDPBuckets", "DeepSpeedBuckets", "FixedBuffer", "HorovodFusion", "MergedGradients",
        "OneMessage", "OptimalFusion", "PerTensor", "Plan",
    ),
    "workbench.timeline": ("predict", "sweep"),
    "workbench.traces": ("lanes",),
    "workbench.whatif": ("Together", "ablate", "compare", "headroom", "loss_curve", "optimal"),
}  # fmt: skip
SHORT = {
    "matplotlib.pyplot": "import matplotlib.pyplot as plt",
    "numpy": "import numpy as np",
    "pandas": "import pandas as pd",
}
WIDTH = 88  # columns: a call that is longer stands on several lines


def written(given: str, body: str) -> str:
    """Return the text of a cell: what is given, in a comment; the imports that body needs; body."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    groups: dict[str, list[str]] = {"of Python": [], "of others": [], "of ours": []}
    for module, names in IMPORTS.items():
        found = [name for name in names if name in used]
        if found:
            line = SHORT.get(module, f"from {module} import {', '.join(found)}")
            ours = "of ours" if module.startswith("workbench") else "of others"
            groups["of Python" if module == "dataclasses" else ours].append(line)
    imports = "\n\n".join("\n".join(lines) for lines in groups.values() if lines)
    return f"# given: {given}\n{imports}\n\n{body.strip()}\n"


def call(name: str, *arguments: str) -> str:
    """Return a call, an argument a line where it is long."""
    flat = f"{name}({', '.join(arguments)})"
    if len(flat) <= WIDTH and "\n" not in flat:
        return flat
    lines = "".join(f"{each},\n" for each in arguments)
    return f"{name}(\n{indent(lines, '    ')})"


def drawn(body: str, settings: str = "") -> str:
    """Return the lines that draw on one axes in the paper's size."""
    return f"with plt.rc_context(paper({settings})):\n    fig, ax = plt.subplots()\n    {body}"


# Copies what stands in the explorer's own .wb-code, and shows it. A page that is neither local nor
# https has no clipboard of the newer kind.
_COPY = """
const box = this.closest('.wb-explorer'), code = box.querySelector('.wb-code pre');
box.classList.add('wb-shows');
const older = () => {
  getSelection().selectAllChildren(code);
  return document.execCommand('copy') ? Promise.resolve() : Promise.reject();
};
const clipboard = navigator.clipboard;
(clipboard ? clipboard.writeText(code.textContent).catch(older) : older())
  .then(() => 'Copied', () => 'Copy it from below').then(told => {
    this.lastElementChild.textContent = told;
    setTimeout(() => { this.lastElementChild.textContent = 'Copy as code'; }, 2000);
  });
"""
# A picture and a slider's handle cannot be given a name from Python.
_NAME = """
const tell = tries => {
  const box = this.closest('.wb-explorer'), image = box && box.querySelector('img.wb-image');
  const handles = box ? [...box.querySelectorAll('.noUi-handle')] : [];
  if (!image || !handles.every(each => each.closest('.widget-inline-hbox').querySelector('label')))
    return tries && setTimeout(tell, 100, tries - 1);
  image.alt = box.querySelector('.wb-alt').textContent;
  for (const slider of box.querySelectorAll('.widget-inline-hbox')) {
    const label = slider.querySelector('label'), ends = slider.querySelectorAll('.noUi-handle');
    if (!label) continue;
    ends.forEach((handle, i) => {
      const end = ends.length > 1 ? [', from', ', to'][i] : '';
      handle.setAttribute('aria-label', label.textContent + end);
      handle.title = label.title;
    });
    const readout = slider.querySelector('.widget-readout');
    if (readout) readout.setAttribute('aria-label', label.textContent + ', to be typed');
  }
};
setTimeout(tell, 0, 50);
"""
_HIDE = ".wb-explorer:not(.wb-shows) .wb-code {display: none} .wb-code pre {white-space: pre-wrap}"

COPY = (
    '<button type="button" class="jupyter-widgets jupyter-button widget-button" style="margin: 0" '
    'title="copy Python text that makes this picture again, and show it below" '
    f'onclick="{escape(_COPY)}"><i class="fa fa-copy center"></i> <span>Copy as code</span>'
    "</button>"
)
CODE = (
    "<pre>{code}</pre><span class='wb-alt' hidden>{alt}</span>"
    + f'<style onload="{escape(_NAME)}">{_HIDE}</style>'.replace("{", "{{").replace("}", "}}")
)
