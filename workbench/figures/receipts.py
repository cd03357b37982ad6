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

from ..base.checks import shown
from ..traces import files
from .alt_text import describe
from .provenance import (
    REPOSITORY,
    as_plain,
    by_name,
    commit,
    plain_recipe,
    sha256,
    sources,
    versions,
)
from .style import FIXED, check_figure, filled, laid_out, short

PNG_DPI = 300
PGF_BYTES = 500_000  # 100 kB take LaTeX 2 s, and the dots of a hatch, of 2 MB, above 90 s
NOT_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
PGF = {"pgf.texsystem": "pdflatex", "pgf.rcfonts": False}  # in the fonts of the paper
_SUFFIXES = ("pdf", "svg", "png", "pgf", "csv", "caption.txt", "receipt.json")


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

    Writes `name`.pdf, .svg, .png, .csv (the data drawn) and .receipt.json, `name`.caption.txt where
    there is a caption, and `name`.pgf where pdflatex is. The receipt holds SHA-256 of the input
    files and of the files written, the sources that the inputs name, the parameters, versions of
    the packages, the commit, the recipe, the caption and the alt text (`describe`). The PDF has it
    among its keywords and the SVG in its description, but for the files written; both have the alt
    text. The same call at the same commit gives the same bytes in every run.

    Parameters
    ----------
    name : plain file name without a suffix: 'scaling', not 'scaling.pdf'
    folder : default is notebooks/figures of the checkout, else figures of the current folder
    inputs : files, folders of files or patterns (`runs/*.json.gz`) that the figure was made from
    parameters : what was chosen, with its unit in the name; numbers, strings, dataclasses
    recipe : what `settle` returned: the notebook and its parameters, for `rebuild`
    caption : the text below the figure, which says what is seen and where the data come from

    Raises
    ------
    ValueError : no figure, the name holds a path or suffix, the folder cannot be made, the data are
        empty, a parameter is no plain value, the recipe is none of settle, the caption is no text
    FileNotFoundError : an input does not exist
    """
    check_figure(fig, "save")
    folder, read = target(name, folder, inputs)
    data = filled(data, {}, f"save {name}: data", "the table drawn")
    if caption is not None and not isinstance(caption, str):
        raise ValueError(f"save: caption: expected a text, got {shown(caption)}")
    if not isinstance(parameters, Mapping | None):
        raise ValueError(f"save: parameters: expected {{name: value}}, got {shown(parameters)}")
    read = by_name(read)
    receipt = {
        "figure": name,
        "inputs": {each: sha256(path) for each, path in read.items()},
        "sources": sources(read),
        "parameters": as_plain(dict(parameters or {}), "parameters"),
        "recipe": plain_recipe(recipe),
        "versions": versions(),
        "git": commit(),
        "caption": caption,
    }
    with mpl.rc_context(FIXED):
        laid_out(fig, f"save {name}")
        receipt["alt"] = describe(fig)
        _make(folder, name)
        pgf = _write(fig, folder / name, receipt)
    whole = {"encoding": "utf-8", "errors": "backslashreplace"}  # half a surrogate has no bytes
    data.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n", **whole)
    told = bool(caption and caption.strip())
    if told:
        (folder / f"{name}.caption.txt").write_text(caption.strip() + "\n", **whole)
    suffixes = ["pdf", "svg", "png", "csv", *["caption.txt"] * told, *["pgf"] * (not pgf)]
    for left in {"caption.txt", "pgf"} - set(suffixes):  # of an earlier time
        (folder / f"{name}.{left}").unlink(missing_ok=True)
    written = {f"{name}.{suffix}": sha256(folder / f"{name}.{suffix}") for suffix in suffixes}
    whole = receipt | {"written": written, "pgf": pgf or "written with pdflatex"}
    text = json.dumps(whole, indent=2, sort_keys=True, allow_nan=False)
    (folder / f"{name}.receipt.json").write_text(text + "\n", encoding="utf-8")
    return folder / f"{name}.pdf"


def _write(fig: Figure, base: Path, receipt: dict) -> str:
    """Write the pictures with the receipt in them; return why no PGF, empty where there is one."""
    told = json.dumps(receipt, sort_keys=True, allow_nan=False)
    title, alt, creator = receipt["figure"], receipt["alt"], "osf-workbench"
    dateless = {"CreationDate": None, "Producer": None}
    named = {"Title": title, "Subject": alt, "Keywords": told, "Creator": creator}
    fig.savefig(f"{base}.pdf", metadata=named | dateless)
    svg, named = io.StringIO(), {"Title": title, "Description": told, "Creator": creator}
    fig.savefig(svg, format="svg", metadata=named | {"Date": None})
    words = f"</title>\n <desc>{escape(alt, quote=False)}</desc>"  # what a screen reader reads
    text = NOT_XML.sub("\N{REPLACEMENT CHARACTER}", svg.getvalue().replace("</title>", words, 1))
    Path(f"{base}.svg").write_text(text, encoding="utf-8", newline="\n")
    text = {"Software": None, "Title": title, "Description": alt}
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


def _default_folder() -> Path:
    notebooks = REPOSITORY / "notebooks"
    return notebooks / "figures" if notebooks.is_dir() else Path("figures")


SUFFIXES = (".pdf", ".svg", ".csv", ".json", ".png", ".pgf", ".txt", ".tex", ".eps", ".ps", ".jpg",
            ".jpeg", ".tif")  # fmt: skip
LONGEST = 200  # bytes of a name: file systems take 255, our suffixes are among them


def target(name: str, folder=None, inputs=()) -> tuple[Path, list[Path]]:
    """Return the folder and input files of save(), or raise as it does; nothing is written."""
    plain = isinstance(name, str) and name.isprintable() and name == name.strip() != ""
    plain = plain and Path(name).name == name != ".." and len(name.encode()) <= LONGEST
    if not plain or "\\" in name or name.lower().endswith(SUFFIXES):
        raise ValueError(
            f"save: name must be a plain file name without folder or suffix, such as 'scaling'; "
            f"got {shown(name)}"
        )
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"save: folder: expected a path, got {type(folder).__name__}")
    folder = _default_folder() if folder is None else Path(folder).expanduser()
    if "\0" in str(folder):
        raise ValueError("save: folder: a path holds no NUL character; name another folder")
    above = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
    if not above.is_dir():
        raise ValueError(f"save: folder {folder}: {above} is a file; name another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"save: folder {folder}: {above} is not writable; name another folder")
    return folder, _files(inputs)


def _make(folder: Path, name: str):
    """Make the folder; ValueError where it cannot be, or another stands in place of a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"save: folder {folder} cannot be made ({error.strerror}); name another folder"
        ) from None
    for suffix in _SUFFIXES:
        if (path := folder / f"{name}.{suffix}").is_dir():
            raise ValueError(f"save: {path} is a folder; expected a file, or nothing: remove it")


def _files(inputs) -> list[Path]:
    """Every file of the inputs; a folder's are those below it."""
    inputs = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if isinstance(inputs, pd.DataFrame | Mapping) or not isinstance(inputs, Iterable):
        raise ValueError(f"save: inputs: expected paths, got {type(inputs).__name__}; pass [path]")
    found = set()
    for path in inputs:
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):
            below = {file for file in Path(path).rglob("*") if file.is_file()}
            if not below:
                raise FileNotFoundError(f"save: inputs: {path}: the folder holds no file")
            found |= below
        else:
            found.update(_named(path))
    return sorted(found)


def _named(path) -> list[Path]:
    try:
        return files.named(path)[0]
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"save: inputs: {error}") from None
    except OSError as error:  # a pipe, a device, a name that no file system takes
        raise ValueError(f"save: inputs: {short(path, 80)} is no file ({error.strerror})") from None
