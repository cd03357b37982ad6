"""Python text that does again what an explorer shows: what was chosen, and the calls that draw."""

import ast
from textwrap import indent

IMPORTS = {  # where each name that such text may use is at home
    "dataclasses": ("replace",),
    "matplotlib.pyplot": ("plt",),
    "numpy": ("np",),
    "pandas": ("pd",),
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
    "workbench.lanes": ("lanes",),
    "workbench.optimum": ("headroom", "loss_curve", "optimal"),
    "workbench.timeline": ("predict", "sweep"),
    "workbench.units": ("GBIT", "MIB", "US"),
    "workbench.whatif": ("Together", "ablate", "compare"),
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
