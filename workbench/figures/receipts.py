"""Save a figure with all it takes to check it: PDF, SVG, PNG, its data as CSV, and a receipt."""

import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_pgf import LatexError
from matplotlib.figure import Figure

from ..base.checks import instance, optional, require
from ..traces import files
from . import provenance
from .alt_text import describe
from .given import check_figure, filled
from .style import FIXED, laid_out, short

PNG_DPI = 300
PGF_BYTES = 500_000  # 100 kB take LaTeX 2 s, and the dots of a hatch, of 2 MB, above 90 s
PGF = {"pgf.texsystem": "pdflatex", "pgf.rcfonts": False}  # in the fonts of the paper
NOT_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LONGEST = 200  # bytes of a name: file systems take 255, our suffixes are among them
SUFFIXES = (".pdf", ".svg", ".csv", ".json", ".png", ".pgf", ".txt", ".tex", ".eps", ".ps", ".jpg",
            ".jpeg", ".tif")  # fmt: skip
_WRITTEN = ("pdf", "svg", "png", "pgf", "csv", "caption.txt", "receipt.json")
_WHOLE = {"encoding": "utf-8", "errors": "backslashreplace"}  # half a surrogate has no bytes
_ELSE = "Name another folder"


def save(
    fig: Figure,
    name: str,
    data: pd.DataFrame,
    folder: Path | str | None = None,
    inputs: Iterable[Path | str] = (),
    parameters: Mapping | None = None,
    *,
    recipe: Mapping | None = None,
    caption: str | None = None,
) -> Path:
    """Write a figure with all it takes to check it, and return the path of the PDF.

    Writes `name`.pdf, .svg, .png, .csv (the data drawn), .receipt.json, .caption.txt if there is a
    caption, and .pgf if pdflatex is installed. The receipt contains SHA-256 of the input files and
    of the files written, the sources that the inputs name, the parameters, versions of the
    packages, the commit, the recipe, the caption and the alt text (`describe`). Except for the
    files written it is also in the PDF's keywords and the SVG's description; both have the alt
    text. The same call at the same commit gives the same bytes in every run.

    Parameters
    ----------
    name : file name without folder and suffix: 'scaling', not 'scaling.pdf'
    folder : default is notebooks/figures of the checkout, else figures of the current folder
    inputs : files, folders of files or patterns (`runs/*.json.gz`) that the figure was made from
    parameters : what was chosen, with its unit in the name; numbers, strings, dataclasses
    recipe : what `settle` returned: the notebook and its parameters, for `rebuild`
    caption : the text below the figure: what it shows and where the data come from

    Raises
    ------
    ValueError : a wrong argument, or a folder that cannot be made; nothing is written
    FileNotFoundError : an input does not exist
    """
    check_figure(fig, "save")
    folder, read = target(name, folder, inputs)
    data = filled(data, {}, f"save {name} data", "the table drawn")
    optional(instance(str, "a text"))(caption, "save caption")
    optional(instance(Mapping, "{name: value}"))(parameters, "save parameters")
    read = provenance.by_name(read)
    receipt = {
        "figure": name,
        "inputs": {each: provenance.sha256(path) for each, path in read.items()},
        "sources": provenance.sources(read),
        "parameters": provenance.as_plain(dict(parameters or {}), "parameters"),
        "recipe": provenance.plain_recipe(recipe),
        "versions": provenance.versions(),
        "git": provenance.commit(),
        "caption": caption,
    }
    with mpl.rc_context(FIXED):
        laid_out(fig, f"save {name}")
        receipt["alt"] = describe(fig)
        _make(folder, name)
        pgf = _write(fig, folder / name, receipt)
    data.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n", **_WHOLE)
    captioned = bool(caption and caption.strip())
    if captioned:
        (folder / f"{name}.caption.txt").write_text(caption.strip() + "\n", **_WHOLE)
    suffixes = ["pdf", "svg", "png", "csv", *["caption.txt"] * captioned, *["pgf"] * (not pgf)]
    for left in {"caption.txt", "pgf"} - set(suffixes):  # of an earlier time
        (folder / f"{name}.{left}").unlink(missing_ok=True)
    written = [f"{name}.{suffix}" for suffix in suffixes]
    receipt["written"] = {each: provenance.sha256(folder / each) for each in written}
    receipt["pgf"] = pgf or "written with pdflatex"
    text = json.dumps(receipt, indent=2, sort_keys=True, allow_nan=False)
    (folder / f"{name}.receipt.json").write_text(text + "\n", encoding="utf-8")
    return folder / f"{name}.pdf"


def _write(fig: Figure, base: Path, receipt: dict) -> str:
    """Write the pictures with the receipt in them; return why no PGF, empty if there is one."""
    whole = json.dumps(receipt, sort_keys=True, allow_nan=False)
    named, alt = {"Title": receipt["figure"], "Creator": "osf-workbench"}, receipt["alt"]
    hidden = {"Subject": alt, "Keywords": whole, "CreationDate": None, "Producer": None}
    fig.savefig(f"{base}.pdf", metadata=named | hidden)
    svg = io.StringIO()
    fig.savefig(svg, format="svg", metadata=named | {"Description": whole, "Date": None})
    words = f"</title>\n <desc>{escape(alt, quote=False)}</desc>"  # what a screen reader reads
    text = NOT_XML.sub("\N{REPLACEMENT CHARACTER}", svg.getvalue().replace("</title>", words, 1))
    Path(f"{base}.svg").write_text(text, encoding="utf-8", newline="\n")
    text = {"Software": None, "Title": receipt["figure"], "Description": alt}
    fig.savefig(f"{base}.png", dpi=PNG_DPI, metadata=text)
    return _write_pgf(fig, f"{base}.pgf")


def _write_pgf(fig: Figure, path: str) -> str:
    if shutil.which("pdflatex") is None:
        return "not written: no pdflatex on this machine"
    try:
        with mpl.rc_context(PGF):
            fig.savefig(path)
    except (LatexError, RuntimeError, ValueError):
        return "not written: pdflatex cannot set one of the figure's texts"
    if os.path.getsize(path) > PGF_BYTES:
        os.unlink(path)
        return "not written: LaTeX takes minutes for so many dots, points or hatches; use the PDF"
    return ""


def target(name: str, folder=None, inputs=()) -> tuple[Path, list[Path]]:
    """Return the folder and input files of save(), or raise as it does; nothing is written."""
    fine = isinstance(name, str) and name.isprintable() and name == name.strip() != ""
    fine = fine and Path(name).name == name != ".." and len(name.encode()) <= LONGEST
    fine = fine and "\\" not in name and not name.lower().endswith(SUFFIXES)
    do = "Leave out folder and suffix"
    require(fine, "save name", "a plain file name, such as 'scaling'", name, do)
    optional(instance(str | os.PathLike, "a path"))(folder, "save folder")
    if folder is None:
        notebooks = provenance.REPOSITORY / "notebooks"
        folder = notebooks / "figures" if notebooks.is_dir() else "figures"
    folder, what = Path(folder).expanduser(), "save folder"
    require("\0" not in str(folder), what, "a path without a NUL character", do=_ELSE)
    above = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
    require(above.is_dir(), what, "a folder", found=f"{above}, which is a file", do=_ELSE)
    writable = os.access(above, os.W_OK | os.X_OK)
    require(writable, what, "a writable folder", found=str(above), do=_ELSE)
    return folder, _files(inputs)


def _make(folder: Path, name: str):
    """Make the folder, and check that no folder stands in place of a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{folder} cannot be made ({error.strerror}). {_ELSE}"
        raise ValueError(f"save folder: {why}") from None
    for suffix in _WRITTEN:
        path = folder / f"{name}.{suffix}"
        require(not path.is_dir(), "save name", f"a file {path}", found="a folder", do="Remove it")


def _files(inputs) -> list[Path]:
    """Return every file of the inputs; a folder's are those below it."""
    inputs = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    several = isinstance(inputs, Iterable) and not isinstance(inputs, pd.DataFrame | Mapping)
    require(several, "save inputs", "paths", inputs, "Pass [path]")
    found = set()
    for path in inputs:
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):
            below = {file for file in Path(path).rglob("*") if file.is_file()}
            if not below:
                raise FileNotFoundError(f"save inputs: {path}: the folder contains no file")
            found |= below
        else:
            found.update(_named(path))
    return sorted(found)


def _named(path) -> list[Path]:
    try:
        return files.named(path)[0]
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"save inputs: {error}") from None
    except OSError as error:  # a pipe, a device, a name that no file system takes
        what = f"{short(path, 80)} is not a file ({error.strerror})"
        raise ValueError(f"save inputs: {what}") from None
