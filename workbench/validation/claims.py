"""What papers and projects claim, and what we compute beside it: a table for a paper.

Claims are rows of data/published/claims.csv, each with its source. Ours is computed here from the
other published tables, and never typed in.
"""

import re
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from ..base.tables import GRADIENTS, check
from ..base.units import GB, GBIT, MIB, MS
from ..costs import Link, Ring
from ..fusion import FixedBuffer, HorovodFusion
from ..fusion.frameworks import phases
from ..timeline import Scenario, predict
from ..whatif import Compression
from .cells import BACKWARD, VALIDATION, stretched
from .gain import GAIN

CLAIMED = {
    "key": "which of ours stands beside it",
    "work": "who claims it",
    "claim": "what, in words",
    "low": "the least claimed, in the unit",
    "high": "the most claimed, in the unit",
    "unit": "share, scaling factor, times or s",
    "source": "DOI, arXiv number, or repository and path",
}
CLAIMS = {
    "work": "who claims it",
    "claim": "what, in words",
    "source": "DOI, arXiv number, or repository and path",
    "unit": "share, scaling factor, times or s",
    "claimed_low": "in the unit",
    "claimed_high": "in the unit",
    "ours_low": "in the unit",
    "ours_high": "in the unit",
    "ratio": "ours_high / claimed_high",
    "note": "what ours rests on, and why it is off",
}
NEAR_LINEAR = 0.9  # the scaling factor that we take these words for
HOP_S = 9.6e-6  # of a ring over the network, NCCL 2.9.9 (src/graph/tuning.cc)


def claims(tables: Mapping, gradients: Mapping, cells, gains) -> pd.DataFrame:
    """Return CLAIMS: each claim with what we compute of the same thing, in the order of the file.

    tables : tables of data/published by file name: claims, one_worker, batchai_resnet50,
        pollux_imagenet and pollux_bert
    gradients : resnet50, resnet101 and vgg16_bn -> GRADIENTS; with one_worker_s, the iteration
        they were recorded in, ready times are in proportion to it, else to two thirds of any
    cells : VALIDATION of all data sets
    gains : GAIN, over models and links

    Where a claim is of a cluster of which only the network's name is known, ours takes its full
    line rate: an upper bound. Raises ValueError for a missing table, a claim with a key that
    nothing here computes, or cells that a claim needs and that are not there.
    """
    check(cells, VALIDATION, "claims: cells")
    check(gains, GAIN, "claims: gains")
    claimed = check(_table(tables, "claims"), CLAIMED, "claims")
    unknown = sorted(set(claimed["key"]) - set(OURS))
    if unknown:
        raise ValueError(f"claims: key: nothing computes {unknown[0]!r}; one of {', '.join(OURS)}")
    rows = []
    for row in claimed.itertuples(index=False):
        low, high, note = OURS[row.key](tables, gradients, cells, gains)
        told = (row.work, row.claim, row.source, row.unit, row.low, row.high)
        rows.append((*told, low, high, high / row.high, note))
    return pd.DataFrame(rows, columns=list(CLAIMS))


def _error(tables, gradients, cells, gains) -> tuple:
    """Return the mean absolute errors of data sets and models: the least and the largest."""
    factors = cells["quantity"].isin(["scaling factor", "s an iteration"])
    own = cells[factors & (cells["method"] != "Pollux") & (cells["dataset"] != "huyutuo")]
    sizes = own["error"].abs().groupby([own["dataset"], own["model"]]).mean()
    worst = own["error"].abs().max()
    note = f"{len(sizes)} models of public runs, means; a single cell up to {100 * worst:.0f} %"
    return sizes.min(), sizes.max(), note


def _gain(tables, gradients, cells, gains) -> tuple:
    """Return the gains of the optimum over buffers that are sent when full."""
    full = gains[gains["baseline"].str.startswith("buffer")]
    inside = (full["verdict"] == "inside").sum()
    note = f"the optimum over groupings: {inside} of {len(full)} models, links and buffers inside"
    return full["gain"].min(), full["gain"].max(), note


def _horovod(model: str, n_workers: int) -> Callable:
    def ours(tables, gradients, cells, gains) -> tuple:
        """Return the scaling factor of 64 images a P100 on rings at 25 Gbit/s, 64 MiB and 5 ms.

        T1 is that of the V100, twice its batch, times how much slower P100s train ResNet-50.
        """
        speed = _table(tables, "batchai_resnet50").query("backend == 'one worker'")
        speed = speed.set_index("gpu")["images_per_s"]
        batches = 64 / _found(_table(tables, "one_worker"), "one_worker", model=model)["batch"]
        one_worker_s = _one_worker_s(tables, model) * batches.iloc[0] * speed["v100"]
        scenario = _on_line_rate(gradients, model, n_workers, 25, one_worker_s / speed["p100"])
        policies = phases(HorovodFusion(64 * MIB, 5 * MS, "0.15"))
        found = [predict(scenario(policy)).scaling_factor for policy in policies]
        each = "VGG-16 with batch normalisation" if model == "vgg16_bn" else "evenly ready"
        note = f"line rate, {each}, T1 of a V100 made a P100's: an upper bound"
        return (mean := float(np.mean(found))), mean, note

    return ours


def _netai(tables, gradients, cells, gains) -> tuple:
    scenario = _on_line_rate(gradients, "vgg16_bn", 64, 100, _one_worker_s(tables, "vgg16_bn"))
    found = predict(scenario(_BUFFER)).scaling_factor
    return found, found, "line rate; by their abstract, too, it would be near-linear then"


def _compression(tables, gradients, cells, gains) -> tuple:
    """Return the least and most compression that the three models need to be near-linear."""
    ratios = []
    for model in ("resnet50", "resnet101", "vgg16_bn"):
        scenario = _on_line_rate(gradients, model, 64, 10, _one_worker_s(tables, model))(_BUFFER)

        def short(ratio: float, scenario=scenario) -> float:
            return predict(Compression(ratio)(scenario)).scaling_factor - NEAR_LINEAR

        ratios.append(1.0 if short(1.0) >= 0 else brentq(short, 1.0, 1000.0))
    return min(ratios), max(ratios), f"scaling factor {NEAR_LINEAR} on 64 workers, three models"


def _on_line_rate(gradients: Mapping, model: str, n_workers: int, gbits: float, one_worker_s):
    """Return policy -> Scenario on a ring that moves so many Gbit/s past each worker."""
    if model not in gradients:
        raise ValueError(f"claims: gradients: expected {model}, got {', '.join(gradients)}")
    table = check(gradients[model], GRADIENTS, f"claims: {model}")
    recorded = "one_worker_s" in table
    share = table["ready_s"].max() / table["one_worker_s"].iloc[0] if recorded else BACKWARD
    own, backward_s = stretched(table, share * one_worker_s), share * one_worker_s
    cost = Ring(Link(HOP_S, 1 / (gbits * GBIT)))
    return lambda policy: Scenario(own, one_worker_s, backward_s, n_workers, cost, policy)


def _merged(dataset: str, model: str, case: str, n_workers: int) -> Callable:
    def ours(tables, gradients, cells, gains) -> tuple:
        """Return the predicted scaling factor of MG-WFBP over that of WFBP."""
        where = {"dataset": dataset, "model": model, "case": case, "n_workers": n_workers}
        of = [_found(cells, "cells", method=m, **where) for m in ("MG-WFBP", "WFBP")]
        merged, plain = (each["predicted"].iloc[0] for each in of)
        return merged / plain, merged / plain, "both predicted, neither fitted to its own speed"

    return ours


def _placed(application: str, batch: int, nodes: int, n_workers: int) -> Callable:
    def ours(tables, gradients, cells, gains) -> tuple:
        """Return T1 as measured over Tn as predicted from fewer nodes."""
        case = f"{nodes} nodes, batch {batch}"
        where = {"model": application, "case": case, "n_workers": n_workers, "method": "OSF"}
        cell = _found(cells, "cells", **where).iloc[0]
        rows = _table(tables, f"pollux_{application}")
        one = _found(rows, f"pollux_{application}", n_workers=1, batch=batch)["step_s"].iloc[0]
        return one / cell["predicted"], one / cell["predicted"], cell["calibrated_on"]

    return ours


def _gap(tables, gradients, cells, gains) -> tuple:
    cell = _found(cells, "cells", dataset="huyutuo", method="off - on").iloc[0]
    return cell["predicted"], cell["predicted"], cell["note"] or cell["calibrated_on"]


def _ring(tables, gradients, cells, gains) -> tuple:
    """Return what a ring of many workers takes at the least: it moves all bytes twice."""
    seconds = float(Ring(Link(0.0, 1 / (6 * GB)))(4 * 300e6, 10**6))
    return seconds, seconds, "fp32, no latency, the limit of many workers"


_BUFFER = FixedBuffer(64 * MIB, 5 * MS, "after")  # how NetAI'20 emulates Horovod
OURS: dict[str, Callable] = {
    "osf_error": _error,
    "osf_gain": _gain,
    "horovod_resnet101_128": _horovod("resnet101", 128),
    "horovod_resnet101_512": _horovod("resnet101", 512),
    "horovod_vgg16_128": _horovod("vgg16_bn", 128),
    "horovod_vgg16_512": _horovod("vgg16_bn", 512),
    "fusion_gap": _gap,
    "netai_vgg16_64": _netai,
    "netai_compression": _compression,
    "mgwfbp_googlenet_8": _merged("B-Caffe", "GoogLeNet", "K80, 10GbE", 8),
    "mgwfbp_resnet50_16": _merged("ddl-benchmarks", "ResNet-50", "10GbE", 16),
    "pollux_imagenet_64": _placed("imagenet", 200, 16, 64),
    "pollux_bert_64": _placed("bert", 12, 16, 64),
    "ring_floor": _ring,
}


def _table(tables: Mapping, name: str) -> pd.DataFrame:
    if not isinstance(tables, Mapping) or name not in tables:
        found = ", ".join(tables) if isinstance(tables, Mapping) else type(tables).__name__
        raise ValueError(f"claims: tables: expected data/published/{name}.csv, got {found}")
    return tables[name]


def _one_worker_s(tables: Mapping, model: str) -> float:
    return float(_found(_table(tables, "one_worker"), "one_worker", model=model)["seconds"].iloc[0])


def _found(table: pd.DataFrame, what: str, **where) -> pd.DataFrame:
    """Return the rows that have these values, or raise ValueError when there is none."""
    same = np.logical_and.reduce([table[name] == value for name, value in where.items()])
    if not same.any():
        wanted = ", ".join(f"{name} {value}" for name, value in where.items())
        raise ValueError(f"claims: {what}: expected a row of {wanted}; found none")
    return table[same]


# --- as text --------------------------------------------------------------------------------------

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # which TeX's own fonts set as another letter
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{EN DASH}": "--",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}
COLUMNS = ("Claim", "Source", "Claimed", "Ours", "Ratio")


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return CLAIMS as people read them: Claim, Source, Claimed, Ours, Ratio and Note, all text.

    Shares are in %, a range has an en dash; ours have three digits, claims at most four.
    """
    check(table, CLAIMS, "readable")
    ranges = {}
    for name, end, digits in (("Claimed", "claimed", 4), ("Ours", "ours", 3)):
        ends = table[f"{end}_low"], table[f"{end}_high"], table["unit"]
        ranges[name] = [_range(*each, digits) for each in zip(*ends, strict=True)]
    told = table["work"] + ": " + table["claim"]
    texts = pd.DataFrame({"Claim": told, "Source": table["source"]} | ranges)
    return texts.assign(Ratio=table["ratio"].map("{:.2f}".format), Note=table["note"])


_UNITS = {"share": (100, " %"), "s": (1, " s"), "times": (1, "\N{MULTIPLICATION SIGN}")}


def _range(low: float, high: float, unit: str, digits: int) -> str:
    factor, sign = _UNITS.get(unit, (1, ""))
    ends = dict.fromkeys(_plain(factor * value, digits) for value in (low, high))
    return "\N{EN DASH}".join(ends) + sign


def _plain(value: float, digits: int) -> str:
    """Return a number with so many digits and no exponent: 0.413, 8.4, 150."""
    return np.format_float_positional(value, digits, unique=False, fractional=False, trim="-")


def escaped(text: str) -> str:
    """Return a text whose characters LaTeX shows as they are."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return re.sub("|".join(map(re.escape, SPECIAL)), lambda found: SPECIAL[found[0]], text)


def booktabs(table: pd.DataFrame) -> str:
    r"""Return CLAIMS as LaTeX for `\input`: a tabular with the rules of booktabs, no notes.

    It needs `\usepackage{booktabs}` and no other package. Claims and sources take half the width of
    the text around it, so that it fits all of a page's; set it `\footnotesize` on a narrow one.
    """
    texts = readable(table)[list(COLUMNS)].map(escaped)
    wrapped = texts[["Claim", "Source"]].map(r"\raggedright {}".format)
    wrapped["Source"] = wrapped["Source"].str.replace("/", r"/\allowbreak{}", regex=False)
    texts = texts.assign(**wrapped)
    rows = [" & ".join(row) + r" \\" for row in (COLUMNS, *texts.itertuples(index=False))]
    columns = r"@{}p{0.28\linewidth}p{0.22\linewidth}rrr@{}"
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )
