"""The files save() writes: embedded fonts, the data, the receipt; and what it refuses."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from conftest import refusal
from figure_tables import SCALING, paper_axes
from matplotlib.figure import Figure
from PIL import Image

from workbench.figures import describe, draw_scaling, paper, provenance, save
from workbench.figures.provenance import REPOSITORY, commit, found, relative

PGF = {"pgf"} if shutil.which("pdflatex") else set()
LATEX = pytest.mark.skipif(not PGF, reason="no pdflatex: apt install texlive-latex-base")
INPUT = b"# source: a table of ours (2020)\n# licence: none\n# source: another\nn_workers\n1\n"
RECIPE = {"notebook": "06-paper-figures", "parameters": {"MODEL": "resnet50", "N": 4}}
CAPTION = "Scaling factor against workers. <Ours> & others'."
CHOSEN = {"alpha_s": np.float64(1e-6), "workers": [1, 2], "yes": np.True_,
          "rows": np.arange(4).reshape(2, 2)}  # fmt: skip
DC = "{http://purl.org/dc/elements/1.1/}"


@pytest.fixture
def ax():
    with paper_axes() as ax:
        yield ax


def scaling(folder: Path) -> tuple[Figure, Path]:
    """Return a figure, and where it was saved with one input file."""
    (folder / "input.csv").write_bytes(INPUT)
    with paper_axes() as ax:
        draw_scaling(ax, SCALING, label="policy")
        given = {"inputs": [folder / "input.csv"], "parameters": CHOSEN}
        words = {"recipe": RECIPE, "caption": CAPTION}
        return ax.figure, save(ax.figure, "scaling", SCALING, folder / "out", **given, **words)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return scaling(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def saved(drawn):
    return drawn[1]


@pytest.fixture(scope="module")
def receipt(saved):
    return receipt_of(saved)


def receipt_of(pdf: Path) -> dict:
    return json.loads(pdf.with_suffix(".receipt.json").read_text())


def all_bytes(folder: Path) -> dict:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


DRAW_AND_SAVE = """
import sys, pandas as pd
from matplotlib.figure import Figure
from workbench.figures import draw_scaling, save
table = pd.DataFrame({"n_workers": [1, 2], "scaling_factor": [1, 0.9], "x": ["a", "b"]})
draw_scaling(ax := Figure().subplots(), table, "x")
save(ax.figure, "scaling", table, folder=sys.argv[1], parameters={"backward_s": 0.05})
"""


@pytest.mark.slow
@pytest.mark.all
def test_two_processes_write_the_same_bytes(tmp_path):
    for seed in ("1", "2"):
        call = [sys.executable, "-c", DRAW_AND_SAVE, str(tmp_path / seed)]
        env = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run(call, check=True, cwd=REPOSITORY, env=env)
    assert all_bytes(tmp_path / "1") == all_bytes(tmp_path / "2")


def test_saving_twice_gives_the_same_bytes(saved, tmp_path):
    _, again = scaling(tmp_path)
    assert all_bytes(again.parent) == all_bytes(saved.parent)


def test_pdf_fonts_are_embedded_as_truetype_also_outside_the_paper_settings(saved, tmp_path):
    with mpl.rc_context({"pdf.fonttype": 3}):
        figure = Figure()
        figure.subplots().set_xlabel("time (ms)")
        other = save(figure, "other", SCALING, tmp_path)
    for content in (saved.read_bytes(), other.read_bytes()):
        streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.S)
        plain = content + b"".join(zlib.decompress(s) for s in streams if s[:1] == b"\x78")
        assert b"/CIDFontType2" in plain and b"/FontFile2" in plain and b"/Type3" not in plain


def test_no_file_holds_a_date_or_an_absolute_path_and_svg_text_stays_text(saved):
    assert b"CreationDate" not in saved.read_bytes()
    svg = saved.with_suffix(".svg").read_text()
    assert "<dc:date>" not in svg and "scaling factor</text>" in svg
    assert str(saved.parents[1]) not in saved.with_suffix(".receipt.json").read_text()


def test_the_receipt_has_the_hashes_of_what_was_read_and_written(saved, receipt):
    pd.testing.assert_frame_equal(pd.read_csv(saved.with_suffix(".csv")), SCALING)
    assert receipt["inputs"] == {"input.csv": hashlib.sha256(INPUT).hexdigest()}
    suffixes = {"pdf", "svg", "png", "csv", "caption.txt"} | PGF
    assert set(receipt["written"]) == {f"scaling.{suffix}" for suffix in suffixes}
    for name, digest in receipt["written"].items():
        assert digest == hashlib.sha256((saved.parent / name).read_bytes()).hexdigest()


def test_the_receipt_tells_versions_parameters_sources_caption_alt_text_and_recipe(drawn, receipt):
    plain = {"alpha_s": 1e-6, "workers": [1, 2], "yes": True, "rows": [[0, 1], [2, 3]]}
    assert receipt["parameters"] == plain
    assert receipt["versions"]["matplotlib"] == mpl.__version__
    assert {"python", "workbench", "numpy", "pandas", "seaborn"} <= set(receipt["versions"])
    assert receipt["sources"] == {"input.csv": ["a table of ours (2020)", "another"]}
    assert receipt["alt"] == describe(drawn[0])
    assert receipt["recipe"] == RECIPE | {"paths": []}
    assert drawn[1].with_name("scaling.caption.txt").read_text() == CAPTION + "\n"
    assert receipt["caption"] == CAPTION


def embedded(receipt: dict) -> dict:
    """What a receipt contains within the pictures: all but the files written, which they are."""
    return {name: value for name, value in receipt.items() if name not in ("written", "pgf")}


@pytest.mark.skipif(shutil.which("pdfinfo") is None, reason="no pdfinfo: apt install poppler-utils")
def test_the_pdf_has_the_receipt_among_its_keywords_and_the_alt_text_as_its_subject(saved, receipt):
    told = subprocess.run(["pdfinfo", saved], capture_output=True, text=True, check=True).stdout
    fields = dict(re.findall(r"^(\w+): +(.*)$", told, re.M))
    assert json.loads(fields["Keywords"]) == embedded(receipt)
    assert fields["Subject"] == receipt["alt"] and fields["Title"] == "scaling"


def test_svg_and_png_have_the_receipt_and_the_alt_text_for_screen_readers(saved, receipt):
    root = ElementTree.parse(saved.with_suffix(".svg")).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{svg}title").text == "scaling"
    assert root.find(f"{svg}desc").text == receipt["alt"]
    (told,) = root.iter(f"{DC}description")
    assert json.loads(told.text) == embedded(receipt)
    with Image.open(saved.with_suffix(".png")) as image:
        assert image.width == round(300 * paper()["figure.figsize"][0])
        assert image.text["Description"] == receipt["alt"]
        assert "Software" not in image.text


def test_the_commit_is_that_of_the_checkout(receipt):
    call = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    try:
        head = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        assert commit() is None and receipt["git"] is None
        return
    assert head.startswith(commit()["commit"]) and len(commit()["commit"]) >= 12
    assert receipt["git"].keys() == {"commit", "changed"}


def test_without_git_or_without_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    with monkeypatch.context() as without_git:
        without_git.setenv("PATH", "")
        assert commit() is None
    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    assert commit() is None


def test_a_caption_left_out_or_blank_takes_its_file_with_it(ax, tmp_path):
    for caption in ("words", " \n"):
        pdf = save(ax.figure, "one", SCALING, tmp_path, caption=caption)
        assert pdf.with_name("one.caption.txt").exists() == (caption == "words")


def test_a_recipe_and_inputs_have_paths_as_those_of_the_repository(ax, tmp_path):
    data = REPOSITORY / "data"
    (tmp_path / "own").mkdir()
    given = {"DATA": data, "RUN": f"{data}/runs", "OWN": str(tmp_path / "own"), "MODEL": "data"}
    recipe, inputs = {"notebook": "x", "parameters": given}, [REPOSITORY / "pyproject.toml"]
    receipt = receipt_of(save(ax.figure, "one", SCALING, tmp_path, inputs, recipe=recipe))
    assert list(receipt["inputs"]) == ["pyproject.toml"]
    assert receipt["recipe"] == {
        "notebook": "x",
        "parameters": {"DATA": "data", "RUN": "data/runs", "OWN": "own", "MODEL": "data"},
        "paths": ["DATA", "OWN", "RUN"],
    }


# --- LaTeX ----------------------------------------------------------------------------------------

PAPER = r"""
\documentclass{article}
\usepackage{pgf}
\def\mathdefault#1{#1}
\begin{document}
\setbox0=\hbox{\input{scaling.pgf}}
\typeout{as wide as \the\wd0.}
\unhbox0
\end{document}
"""


@LATEX
@pytest.mark.slow
def test_latex_sets_the_pgf_as_wide_as_the_column(saved, tmp_path):
    shutil.copy(saved.with_suffix(".pgf"), tmp_path)
    (tmp_path / "paper.tex").write_text(PAPER)
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    run = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    told = re.search(r"as wide as ([\d.]+)pt", run.stdout)
    assert float(told[1]) / 72.27 == pytest.approx(paper()["figure.figsize"][0], abs=0.01)


def test_without_latex_the_receipt_says_that_there_is_no_pgf(ax, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    pdf = save(ax.figure, "one", SCALING, tmp_path)
    assert receipt_of(pdf)["pgf"] == "not written: no pdflatex on this machine"
    assert not pdf.with_suffix(".pgf").exists()


@LATEX
@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_pgf_that_latex_cannot_set_or_only_in_minutes_is_not_written(ax, tmp_path):
    ax.plot(np.arange(9000) % 97, np.arange(9000) % 89, "o", ls="")
    pdf = save(ax.figure, "many", SCALING, tmp_path)
    assert receipt_of(pdf)["pgf"].startswith("not written: LaTeX takes minutes")
    ax.clear()
    ax.set_xlabel("\N{HIRAGANA LETTER A}")
    pdf = save(ax.figure, "many", SCALING, tmp_path)
    assert receipt_of(pdf)["pgf"].startswith("not written: pdflatex cannot set")
    assert pdf.exists() and not pdf.with_suffix(".pgf").exists()


# --- what is refused, before anything is written --------------------------------------------------

LOOP: list = []
LOOP.append(LOOP)
REFUSED = [
    *(("name", each) for each in ("", "..", "a/b", "/tmp/scaling", "a\\b", "a.pdf", "a.PNG", 5)),
    *(("name", each) for each in ("a\nb", "a\0b", "a\ud800", " a", "a" * 201, "a.txt")),
    *(("recipe", each) for each in ("06", {"notebook": "x"}, {**RECIPE, "parameters": 3})),
    ("caption", 3),
    ("folder", 3),
    ("folder", "fig\0ures"),
    ("inputs", SCALING),
    ("inputs", [os.devnull]),
    ("inputs", ["x" * 5000]),
    ("parameters", [1]),
    ("parameters", {"a": LOOP}),
    *(("parameters['a']", {"a": each}) for each in (np.nan, object(), [np.inf], b"x", SCALING)),
    ("parameters['a']['b']", {"a": {"b": np.nan}}),
    ("parameters['a']", {"a": np.ma.masked}),
    ("data", SCALING[:0]),
    ("fig", None),
]


@pytest.mark.parametrize(("argument", "value"), REFUSED)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(ax, tmp_path, argument, value):
    out = tmp_path / "out"
    given = {"fig": ax.figure, "name": "one", "data": SCALING, "folder": out}
    text = refusal(lambda: save(**given | {argument.split("[")[0]: value}), argument)
    assert not out.exists() and len(text) < 250


def test_folders_and_files_in_the_place_of_another_are_named(ax, tmp_path):
    (tmp_path / "taken").write_text("a file")
    for folder in ("taken", "taken/below", "long" * 100):
        taken = tmp_path / folder
        refusal(lambda taken=taken: save(ax.figure, "a", SCALING, taken), "folder", folder[:5])
    (tmp_path / "there.pgf").mkdir()
    refusal(lambda: save(ax.figure, "there", SCALING, tmp_path), "name", "there.pgf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken", "there.pgf"]


def test_a_figure_that_cannot_be_drawn_writes_nothing(ax, tmp_path):
    ax.set_title(r"$\frac{$")
    with pytest.raises(ValueError, match=r"^save bad: Matplotlib cannot draw the text '\$.frac"):
        save(ax.figure, "bad", SCALING, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- names, inputs and texts of any kind ----------------------------------------------------------


def test_inputs_may_be_patterns_and_folders_and_one_that_is_absent_is_named(ax, tmp_path):
    (tmp_path / "in" / "below").mkdir(parents=True)
    for name in ("rank0.json", "rank1.json", "below/rank0.json"):
        (tmp_path / "in" / name).write_text(name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "link").symlink_to(tmp_path)  # not followed: it may lead round

    def read(inputs):
        return list(receipt_of(save(ax.figure, "one", SCALING, tmp_path, inputs))["inputs"])

    assert read(f"{tmp_path}/in/*.json") == ["rank0.json", "rank1.json"]
    assert sorted(read([tmp_path / "in"])) == ["rank0.json", "rank0.json #2", "rank1.json"]
    for absent in ("absent.json", "none*.json", tmp_path / "empty"):
        with pytest.raises(FileNotFoundError, match=re.escape(str(absent))):
            read([absent])


def test_the_current_folder_is_told_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative(Path(".")) == tmp_path.name and found(tmp_path.name) is None
    assert relative(Path("/")) == "" and found("") is None


def test_a_folder_may_begin_at_home_and_a_name_may_have_a_dot(ax, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    pdf = save(ax.figure, "torch-2.6", SCALING, "~/figures")
    assert pdf == tmp_path / "figures" / "torch-2.6.pdf"


@pytest.mark.filterwarnings("ignore:Glyph")
def test_texts_of_any_kind_stay_text_in_xml_and_csv(ax, tmp_path):
    told = "<script>alert(1)</script> ]]> &amp;"
    path = tmp_path / "hostile.CSV"  # of which only the head is read
    path.write_text(f"\ufeff# source: {told}\n# source:\n#source: tight\nx\n# source: late\n")
    ax.set_xlabel("a\0b\x1b ]]> <script>")
    ax.plot([0, 1], [0, 1], label="c\x0bd", gid="</g>\x01")
    table = pd.DataFrame({"name": ["\ud800"]})
    pdf = save(ax.figure, "hostile", table, tmp_path, [path], caption="e\0\ud800\ufffe")
    svg = ElementTree.parse(pdf.with_suffix(".svg")).getroot()
    assert svg.find("{http://www.w3.org/2000/svg}desc").text == receipt_of(pdf)["alt"]
    assert receipt_of(pdf)["sources"] == {"hostile.CSV": [told, "tight"]}
    (said,) = svg.iter(f"{DC}description")
    assert json.loads(said.text)["sources"] == {"hostile.CSV": [told, "tight"]}
    assert receipt_of(pdf)["caption"] == "e\0\ud800\ufffe"
    assert pdf.with_suffix(".csv").read_text() == "name\n\\ud800\n"
