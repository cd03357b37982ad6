"""All public runs of data/published: their tables, predictions for them, and their sources."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import one_of, require
from ..base.tables import check
from ..timeline import Scenario, sweep
from . import cells
from .cells import BACKWARD, VALIDATION, evenly_ready
from .gain import fusion_gain

_OF_POLLUX = {"imagenet": "ResNet-50", "bert": "BERT-Base", "cifar10": "ResNet-18"}
SCALING_CURVES = {
    "panel": "whose runs",
    "curve": "what the panel compares",
    "model": "what was trained",
    "n_workers": "workers",
    "predicted": "scaling factor, ours",
    "measured": "scaling factor of the run",
}
_OSF = "OSF's abstract is public (doi 10.1145/3485447.3511981); its recursion is reconstructed."
_LINK, _TRACE = "nccl_32gpu_100gbit_ring", "v100_backward_trace"
CAPTIONS = {  # figure -> what it shows, and the tables it rests on
    "scaling-by-model": (
        "Scaling factor against workers by model: a forecast, on grey ground extrapolated beyond "
        "the workers that were timed, and three published systems with their measurements.",
        (_TRACE, _LINK, "ddl_benchmarks", "batchai_resnet50", "pollux_imagenet"),
    ),
    "predicted-and-measured": (
        "Predicted against measured, with the error of each number. Band: within 8.4 %, the "
        "largest error that the paper's abstract names.",
        ("googlenet_k80_speed", "ddl_benchmarks", "horovod_fusion_runs", "batchai_resnet50",
         "pollux_imagenet"),
    ),
    "overlap-timeline": (
        "One backward pass and its messages, with and without overlap and fusion. Ticks: messages "
        "ready. Hatched: exposed communication.",
        (_TRACE, _LINK),
    ),
    "buffer-size": (
        "Scaling factor against the size of a constant fusion buffer. Star: the best. Dotted: "
        "adaptive fusion, the optimum over groupings. Dashed: the buffer of today.",
        (_TRACE, _LINK, "ddl_benchmarks", "gradients"),
    ),
    "factors": (
        "What degrades the scaling factor, one factor at a time. Marks: as it is. Bandwidth, "
        "latency, batch and GPU speed as multiples of today's; the largest gradient in % of all "
        "bytes; stragglers as standard deviation in % of an iteration.",
        (_TRACE, _LINK, "ddl_benchmarks", "gradients"),
    ),
    "adaptive-fusion": (
        "Adaptive fusion against constant buffers, one mark per model and public link. Band: the "
        "gain of 32.2 to 150 % that the paper's abstract claims.",
        (_TRACE, "googlenet_k80_trace", "alpha_beta_links"),
    ),
    "remedies": (
        "Cumulative ablation from one message per gradient after backward. Diamonds: the gain of "
        "each alone. Hollow: bounds of fusion.",
        (_TRACE, _LINK),
    ),
    "all-reduce-cost": (
        "Time of an all-reduce against its size, with a price in regimes; the numbers at the "
        "corners are its bandwidths.",
        ("nccl_32gpu_100gbit",),
    ),
    "forecast": (
        "Scaling factor with PyTorch's buckets, its 95 % band and the knee; on grey ground "
        "extrapolated.",
        (_TRACE, _LINK),
    ),
    "sensitivity": (
        "By how many % the scaling factor changes for 1 % more of each parameter.",
        (_TRACE, _LINK),
    ),
    "claims": (
        "What was claimed, and ours divided by it. Band: within 8.4 %. Each claim's source is in "
        "the table next to the figure.",
        ("claims",),
    ),
}  # fmt: skip
# Parameters of a head and a first layer for 10 classes and small images, in bytes of fp32.
_TEN_CLASSES = {2_048_000: 20_480, 4_000: 40, 37_632: 6_912}


def published(data: Path | str) -> tuple[dict, dict]:
    """Return the tables of data/published by file name, and GRADIENTS by model with one_worker_s.

    resnet50 and vgg16_bn have the ready times of a public trace (V100, batch 32). All others are
    synthetic: the k-th of L gradients is ready at k/L of backward, which takes two thirds of an
    iteration of one second.
    """
    data = Path(data)
    tables = {
        path.stem: pd.read_csv(path, comment="#") for path in sorted(data.glob("published/*.csv"))
    }
    expected = f"a folder with published/{_TRACE}.csv"
    require(_TRACE in tables, str(data), expected, found="one without it")
    sizes = pd.read_csv(data / "models" / "gradients.csv", comment="#")
    gradients = {
        name: evenly_ready(part, BACKWARD).assign(one_worker_s=1.0)
        for name, part in sizes.groupby("model")
    }
    trace = tables[_TRACE].assign(name=lambda t: t["index"].astype("str"))
    recorded = {name: part.reset_index(drop=True) for name, part in trace.groupby("model")}
    return tables, gradients | recorded


def models(tables: Mapping, gradients: Mapping) -> dict:
    """Return the models of the figures: name -> (GRADIENTS, T1 in s) of three models on a V100.

    ResNet-50 and VGG-16-BN as recorded. BERT-Base has the T1 of ddl-benchmarks, batch 64, and
    synthetic ready times.
    """
    keys = {"ResNet-50": "resnet50", "VGG-16-BN": "vgg16_bn", "BERT-Base": "bert_base"}
    found = {name: (gradients[k], gradients[k]["one_worker_s"].iloc[0]) for name, k in keys.items()}
    bert = tables["ddl_benchmarks"].query("model == 'BERT-Base'").iloc[0]
    one_worker_s = bert["batch"] / bert["one_worker_samples_per_s"]
    return found | {"BERT-Base": (gradients["bert_base"], one_worker_s)}


def scenarios(tables: Mapping, gradients: Mapping, n_workers: int, cost, fusion) -> dict:
    """Return the Scenario of each of `models` on n_workers, by name."""
    found = {}
    for name, (table, one_worker_s) in models(tables, gradients).items():
        factor = one_worker_s / table["one_worker_s"].iloc[0]
        own = table[["name", "nbytes"]].assign(ready_s=table["ready_s"] * factor)
        backward_s = own["ready_s"].max()
        found[name] = Scenario(own, one_worker_s, backward_s, n_workers, cost, fusion)
    return found


def predictions(tables: Mapping, gradients: Mapping) -> pd.DataFrame:
    """Return VALIDATION of all public runs of several workers.

    B-Caffe, ddl-benchmarks, Horovod's fusion, BatchAI's devices, and Pollux from 4 nodes to 16.
    """
    planned = tables["alpha_beta_links"].replace({"56Gb IB": "100GbE", "100Gb IB": "100GbE"})
    of_ddl = {"ResNet-50": "resnet50", "BERT-Base": "bert_base", "BERT-Large": "bert_large"}
    of_ddl = {name: gradients[key] for name, key in of_ddl.items()}
    v100 = gradients["resnet50"]
    small = gradients["resnet18"].replace({"nbytes": _TEN_CLASSES})
    of_pollux = {"imagenet": v100, "bert": gradients["bert_base"], "cifar10": small}
    placed = [tables[f"pollux_{name}"].assign(application=name) for name in of_pollux]
    parts = [
        cells.validate_bcaffe(tables["googlenet_k80_trace"], tables["googlenet_k80_speed"]),
        cells.validate_ddl(tables["ddl_benchmarks"], of_ddl, planned),
        cells.validate_horovod(tables["horovod_fusion_runs"], v100),
        cells.validate_gpus(tables["batchai_resnet50"], v100),
        cells.validate_pollux(pd.concat(placed, ignore_index=True), of_pollux, 4),
    ]
    return pd.concat(parts, ignore_index=True)


def gained(tables: Mapping, gradients: Mapping) -> pd.DataFrame:
    """Return GAIN of adaptive fusion: models with recorded ready times, on every public link."""
    trace, speed = tables["googlenet_k80_trace"], tables["googlenet_k80_speed"]
    links = [tables["alpha_beta_links"], cells.logged_links(trace)]
    one = speed[speed["n_workers"] == 1].iloc[0]
    own = trace[trace["run"] == "tmp8comm"].reset_index(drop=True)
    recorded = models(tables, gradients) | {"GoogLeNet": (own, one["batch"] / one["images_per_s"])}
    del recorded["BERT-Base"]
    return fusion_gain(recorded, pd.concat(links, ignore_index=True))


def whole_iterations(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of VALIDATION about the whole iteration, predicted by OSF.

    Models have their names, and the column `source` has model and data set.
    """
    check(cells, VALIDATION, "whole_iterations")
    whole = cells["quantity"].isin(["scaling factor", "s an iteration"])
    rows = cells[whole & (cells["method"] != "Pollux")]
    rows = rows.replace({"model": _OF_POLLUX, "dataset": {"huyutuo": "Horovod 0.20"}})
    return rows.assign(source=rows["model"] + ", " + rows["dataset"])


def forecast_curves(scenarios: Mapping, n_workers: Iterable[int]) -> pd.DataFrame:
    """Return SCALING_CURVES of scenarios by name, in one panel; `measured` is empty."""
    n_workers = list(n_workers)
    parts = [
        sweep(each, n_workers=n_workers).assign(panel="forecast", curve=name, model=name)
        for name, each in scenarios.items()
    ]
    table = pd.concat(parts, ignore_index=True).rename(columns={"scaling_factor": "predicted"})
    return table.assign(measured=np.nan)[list(SCALING_CURVES)]


def scaling_curves(cells: pd.DataFrame, tables: Mapping) -> pd.DataFrame:
    """Return SCALING_CURVES: predicted and measured scaling factors of three sources.

    ddl-benchmarks with MG-WFBP over 100GbE by model; ResNet-50 of BatchAI over InfiniBand by
    device; and Pollux with the largest batch that was run on the most workers, T1 as measured.
    """
    check(cells, VALIDATION, "scaling_curves")
    ddl = cells.query("dataset == 'ddl-benchmarks' and method == 'MG-WFBP' and case == '100GbE'")
    gpus = cells[(cells["dataset"] == "BatchAI") & cells["case"].str.contains("InfiniBand")]
    osf = cells.query("dataset == 'Pollux' and method == 'OSF'")
    parts = [
        ddl.assign(panel="ddl-benchmarks, MG-WFBP", curve=ddl["model"]),
        gpus.assign(panel="BatchAI, by GPU", curve=gpus["method"].str.upper()),
    ]
    for name, rows in osf.groupby("model", sort=False):
        model, curve = _OF_POLLUX.get(name, name), _pollux_curve(rows, tables[f"pollux_{name}"])
        parts.append(curve.assign(panel="Pollux, from 4 nodes", curve=model, model=model))
    return pd.concat(parts, ignore_index=True)[list(SCALING_CURVES)]


def _pollux_curve(rows: pd.DataFrame, placed: pd.DataFrame) -> pd.DataFrame:
    """Return the scaling factors of one application from its cells in s per iteration."""
    batch = rows["case"].str.extract(r"batch ([\d.]+)")[0].astype(float)
    most = rows["n_workers"] == rows["n_workers"].max()
    chosen = batch[most].max()
    mine = rows[batch == chosen].groupby("n_workers")[["measured", "predicted"]].mean()
    alone = placed[(placed["n_workers"] == 1) & (placed["batch"] == chosen)]["step_s"].mean()
    return (alone / mine).reset_index()


def caption(data: Path | str, name: str, own: Iterable[Path | str] = ()) -> str:
    """Return the caption of one of CAPTIONS: what it shows, what is ours, and all its sources.

    own : the reader's files that replaced published ones
    """
    one_of(CAPTIONS)(name, "name")
    words, tables = CAPTIONS[name]
    names = ", ".join(Path(path).name for path in own)
    mine = f" Own: {names}." if names else ""
    return f"{words} {_OSF}{mine} {cited(data, *tables)}"


def cited(data: Path | str, *names: str) -> str:
    """Return the sources of tables of data/published or data/models, as a caption names them.

    A repository, with its commit if the header has one; otherwise the words of the header.
    """
    sources: dict[str, None] = {}
    for name in names:
        (path,) = Path(data).glob(f"*/{name}.csv")
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("# source: "):
                sources |= dict.fromkeys(_short_sources(line.removeprefix("# source: ")))
    return f"Sources: {'; '.join(sources)}."


def _short_sources(line: str) -> list[str]:
    """Return the repositories that a header names, with their commits if it has one for each."""
    names = re.findall(r"(?:github(?:\.com/| )|, )([\w.-]+/[\w.-]+)(?=[ ,]|$)", line)
    commits = re.findall(r"(?:@|commit )([0-9a-f]{7})[0-9a-f]*", line)
    if not names:
        return [line.split(";")[0].rstrip(".")]
    ends = [f" at {commit}" for commit in commits]
    ends = ends if len(ends) == len(names) else [""] * len(names)
    return [f"github.com/{name}{end}" for name, end in zip(names, ends, strict=True)]
