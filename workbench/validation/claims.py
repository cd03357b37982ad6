"""What papers and projects claim, compared with what we compute: a table for a paper.

Claims are rows of data/published/claims.csv, each with its source. Our values are computed here
from the other published tables and never typed in.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from ..base.checks import require
from ..base.tables import GRADIENTS, check
from ..base.units import GB, GBIT, MIB, MS
from ..costs import Link, Ring
from ..fusion import FixedBuffer, HorovodFusion
from ..fusion.frameworks import phases
from ..timeline import Scenario, predict
from ..whatif import Compression
from .cells import BACKWARD, VALIDATION, rows_with, stretched
from .gain import GAIN

CLAIMED = {
    "key": "which of ours it is compared with",
    "work": "who claims it",
    "claim": "what, in words",
    "low": "the least claimed, in the unit",
    "high": "the most claimed, in the unit",
    "unit": "share, scaling factor, times or s",
    "source": "DOI, arXiv number, or repository and path",
}
CLAIMS = {
    **{name: CLAIMED[name] for name in ("work", "claim", "source", "unit")},
    "claimed_low": "in the unit",
    "claimed_high": "in the unit",
    "ours_low": "in the unit",
    "ours_high": "in the unit",
    "ratio": "ours_high / claimed_high",
    "note": "what ours rests on, and why it is off",
}
NEAR_LINEAR = 0.9  # the scaling factor that we take "near-linear" to mean
_HOP_S = 9.6e-6  # of a ring over the network, NCCL 2.9.9 (src/graph/tuning.cc)
_BUFFER = FixedBuffer(64 * MIB, 5 * MS, "after")  # how NetAI'20 emulates Horovod


class _Data(NamedTuple):
    tables: Mapping
    gradients: Mapping
    cells: pd.DataFrame
    gains: pd.DataFrame


def claims(tables: Mapping, gradients: Mapping, cells, gains) -> pd.DataFrame:
    """Return CLAIMS: each claim with what we compute of the same thing, in the order of the file.

    tables : tables of data/published by file name: claims, one_worker, batchai_resnet50,
        pollux_imagenet and pollux_bert
    gradients : resnet50, resnet101 and vgg16_bn -> GRADIENTS. Ready times scale with one_worker_s,
        the iteration they were recorded in; without it backward takes two thirds of an iteration
    cells : VALIDATION of all data sets
    gains : GAIN, over models and links

    If only the name of a cluster's network is known, ours takes its full line rate: an upper bound.
    Raises ValueError for a missing table, an unknown key, or cells that a claim needs and that are
    missing.
    """
    check(cells, VALIDATION, "cells")
    check(gains, GAIN, "gains")
    claimed = check(_table(tables, "claims"), CLAIMED, "claims")
    for key in claimed["key"]:
        require(key in OURS, "key", f"one of {', '.join(OURS)}", key)
    data, rows = _Data(tables, gradients, cells, gains), []
    for row in claimed.itertuples(index=False):
        values, note = OURS[row.key](data)
        low, high = min(values), max(values)
        what = (row.work, row.claim, row.source, row.unit, row.low, row.high)
        rows.append((*what, low, high, high / row.high, note))
    return pd.DataFrame(rows, columns=list(CLAIMS))


# Each function below returns our values for a claim, and its note.


def _error(data: _Data) -> tuple:
    """Return the mean absolute error of each data set and model."""
    cells = data.cells
    factors = cells["quantity"].isin(["scaling factor", "s an iteration"])
    own = cells[factors & (cells["method"] != "Pollux") & (cells["dataset"] != "huyutuo")]
    sizes = own["error"].abs().groupby([own["dataset"], own["model"]]).mean()
    worst = own["error"].abs().max()
    return (
        sizes,
        f"{len(sizes)} models of public runs, means; a single cell up to {100 * worst:.0f} %",
    )


def _gain(data: _Data) -> tuple:
    """Return the gains of the optimum over buffers that are sent when full."""
    full = data.gains[data.gains["baseline"].str.startswith("buffer")]
    inside = f"{(full['verdict'] == 'inside').sum()} of {len(full)}"
    return full["gain"], f"the optimum over groupings: {inside} models, links and buffers inside"


def _horovod(model: str, n_workers: int, data: _Data) -> tuple:
    """Return the scaling factor of 64 images per P100 on rings at 25 Gbit/s, 64 MiB and 5 ms.

    T1 is that of the V100, twice its batch, times how much slower P100s train ResNet-50.
    """
    speed = _table(data.tables, "batchai_resnet50").query("backend == 'one worker'")
    speed, v100 = speed.set_index("gpu")["images_per_s"], _v100(data, model)
    one_worker_s = float(v100["seconds"]) * (64 / v100["batch"]) * speed["v100"] / speed["p100"]
    scenario = _on_line_rate(data, model, n_workers, 25, one_worker_s)
    policies = phases(HorovodFusion(64 * MIB, 5 * MS, "0.15"))
    found = [predict(replace(scenario, fusion=each)).scaling_factor for each in policies]
    each = "VGG-16 with batch normalisation" if model == "vgg16_bn" else "evenly ready"
    note = f"line rate, {each}, T1 of a V100 scaled to a P100: an upper bound"
    return [float(np.mean(found))], note


def _netai(data: _Data) -> tuple:
    scenario = _on_line_rate(data, "vgg16_bn", 64, 100)
    found = predict(scenario).scaling_factor
    return [found], "line rate; by their abstract, too, it would be near-linear then"


def _compression(data: _Data) -> tuple:
    """Return the compression that each of three models needs to be near-linear."""

    def short(ratio: float, scenario: Scenario) -> float:
        return predict(Compression(ratio)(scenario)).scaling_factor - NEAR_LINEAR

    models = ("resnet50", "resnet101", "vgg16_bn")
    found = [_on_line_rate(data, model, 64, 10) for model in models]
    ratios = [1.0 if short(1.0, s) >= 0 else brentq(short, 1.0, 1000.0, (s,)) for s in found]
    return ratios, f"scaling factor {NEAR_LINEAR} on 64 workers, three models"


def _on_line_rate(data: _Data, model: str, n_workers: int, gbits: float, one_worker_s=None):
    """Return the Scenario, with _BUFFER, on a ring that moves gbits Gbit/s past each worker.

    one_worker_s : that of the V100 by default
    """
    gradients = data.gradients
    require(model in gradients, "gradients", model, found=", ".join(gradients))
    table = check(gradients[model], GRADIENTS, f"gradients of {model}")
    one_worker_s = one_worker_s or float(_v100(data, model)["seconds"])
    recorded = "one_worker_s" in table
    share = table["ready_s"].max() / table["one_worker_s"].iloc[0] if recorded else BACKWARD
    backward_s, cost = share * one_worker_s, Ring(Link(_HOP_S, 1 / (gbits * GBIT)))
    own = stretched(table, backward_s)
    return Scenario(own, one_worker_s, backward_s, n_workers, cost, _BUFFER)


def _merged(dataset: str, model: str, case: str, n_workers: int, data: _Data) -> tuple:
    """Return the predicted scaling factor of MG-WFBP over that of WFBP."""
    where = {"dataset": dataset, "model": model, "case": case, "n_workers": n_workers}
    merged, apart = (_cell(data, method=m, **where)["predicted"] for m in ("MG-WFBP", "WFBP"))
    return [merged / apart], "both predicted, neither fitted to its own speed"


def _placed(application: str, batch: int, nodes: int, n_workers: int, data: _Data) -> tuple:
    """Return T1 as measured over Tn as predicted from fewer nodes."""
    case = f"{nodes} nodes, batch {batch}"
    cell = _cell(data, model=application, case=case, n_workers=n_workers, method="OSF")
    name = f"pollux_{application}"
    one = rows_with(_table(data.tables, name), name, n_workers=1, batch=batch)
    return [one["step_s"].iloc[0] / cell["predicted"]], cell["calibrated_on"]


def _gap(data: _Data) -> tuple:
    cell = _cell(data, dataset="huyutuo", method="off - on")
    return [cell["predicted"]], cell["note"] or cell["calibrated_on"]


def _ring(data: _Data) -> tuple:
    """Return the least time of a ring of many workers, which moves all bytes twice."""
    seconds = float(Ring(Link(0.0, 1 / (6 * GB)))(4 * 300e6, 10**6))
    return [seconds], "fp32, no latency, the limit of many workers"


OURS: dict[str, Callable] = {
    "osf_error": _error,
    "osf_gain": _gain,
    "horovod_resnet101_128": partial(_horovod, "resnet101", 128),
    "horovod_resnet101_512": partial(_horovod, "resnet101", 512),
    "horovod_vgg16_128": partial(_horovod, "vgg16_bn", 128),
    "horovod_vgg16_512": partial(_horovod, "vgg16_bn", 512),
    "fusion_gap": _gap,
    "netai_vgg16_64": _netai,
    "netai_compression": _compression,
    "mgwfbp_googlenet_8": partial(_merged, "B-Caffe", "GoogLeNet", "K80, 10GbE", 8),
    "mgwfbp_resnet50_16": partial(_merged, "ddl-benchmarks", "ResNet-50", "10GbE", 16),
    "pollux_imagenet_64": partial(_placed, "imagenet", 200, 16, 64),
    "pollux_bert_64": partial(_placed, "bert", 12, 16, 64),
    "ring_floor": _ring,
}


def _table(tables: Mapping, name: str) -> pd.DataFrame:
    found = tables if isinstance(tables, Mapping) else [type(tables).__name__]
    expected = f"data/published/{name}.csv"
    require(found is tables and name in found, "tables", expected, found=", ".join(found))
    return tables[name]


def _v100(data: _Data, model: str) -> pd.Series:
    return rows_with(_table(data.tables, "one_worker"), "one_worker", model=model).iloc[0]


def _cell(data: _Data, **where) -> pd.Series:
    return rows_with(data.cells, "cells", **where).iloc[0]


# --- as text --------------------------------------------------------------------------------------

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # TeX's own fonts set another letter for it
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{EN DASH}": "--",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}
_COLUMNS = ("Claim", "Source", "Claimed", "Ours", "Ratio")


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return CLAIMS for people to read: Claim, Source, Claimed, Ours, Ratio and Note, all text.

    Shares are in %, a range has an en dash; ours have three digits, claims at most four.
    """
    check(table, CLAIMS, "readable")
    ranges = {}
    for name, end, digits in (("Claimed", "claimed", 4), ("Ours", "ours", 3)):
        ends = table[f"{end}_low"], table[f"{end}_high"], table["unit"]
        ranges[name] = [_range(*each, digits) for each in zip(*ends, strict=True)]
    claim = table["work"] + ": " + table["claim"]
    texts = pd.DataFrame({"Claim": claim, "Source": table["source"]} | ranges)
    return texts.assign(Ratio=table["ratio"].map("{:.2f}".format), Note=table["note"])


_UNITS = {"share": (100, " %"), "s": (1, " s"), "times": (1, "\N{MULTIPLICATION SIGN}")}


def _range(low: float, high: float, unit: str, digits: int) -> str:
    factor, sign = _UNITS.get(unit, (1, ""))
    ends = dict.fromkeys(_plain(factor * value, digits) for value in (low, high))
    return "\N{EN DASH}".join(ends) + sign


def _plain(value: float, digits: int) -> str:
    """Return a number with that many digits and no exponent: 0.413, 8.4, 150."""
    return np.format_float_positional(value, digits, unique=False, fractional=False, trim="-")


def escaped(text: str) -> str:
    """Return a text escaped so that LaTeX shows its characters as they are."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return re.sub("|".join(map(re.escape, _SPECIAL)), lambda found: _SPECIAL[found[0]], text)


def booktabs(table: pd.DataFrame) -> str:
    r"""Return CLAIMS as LaTeX for `\input`: a tabular with the rules of booktabs, no notes.

    It needs `\usepackage{booktabs}` and no other package. Claims and sources take half the width of
    the text, so that the table fits a page; set it in `\footnotesize` on a narrow one.
    """
    texts = readable(table)[list(_COLUMNS)].map(escaped)
    wrapped = texts[["Claim", "Source"]].map(r"\raggedright {}".format)
    wrapped["Source"] = wrapped["Source"].str.replace("/", r"/\allowbreak{}", regex=False)
    texts = texts.assign(**wrapped)
    head, *body = [" & ".join(row) + r" \\" for row in (_COLUMNS, *texts.itertuples(index=False))]
    columns = r"@{}p{0.28\linewidth}p{0.22\linewidth}rrr@{}"
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
