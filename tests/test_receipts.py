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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from workbench.figures import describe, draw_scaling, paper, save
from workbench.figures.provenance import REPOSITORY, by_name, commit, found, relative

PGF = {"pgf"} if shutil.which("pdflatex") else set()
SCALING = pd.DataFrame(
    {
        "n_workers": [1, 2, 4, 8] * 3,
        "scaling_factor": [1, 0.9, 0.8, 0.7, 1, 0.8, 0.6, 0.5, 1, 0.95, 0.9, 0.85],
        "policy": ["one message"] * 4 + ["per tensor"] * 4 + ["DDP buckets"] * 4,
    }
)


@pytest.fixture
def ax():
    """An Axes of a figure that no state of pyplot knows, at paper size."""
    with mpl.rc_context(paper()):
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure.subplots()


DRAW_AND_SAVE = """
import sys, pandas as pd, matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
from workbench.figures import draw_timeline, paper, save
table = pd.DataFrame({"n_gradients": [2, 3], "nbytes": [10, 20], "ready_s": [0.01, 0.02],
                      "start_s": [0.01, 0.04], "end_s": [0.04, 0.07]})
with plt.rc_context(paper()):
    fig, ax = plt.subplots()
    draw_timeline(ax, table, backward_s=0.05)
save(fig, "timeline", data=table, folder=sys.argv[1], parameters={"backward_s": 0.05})
"""


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", DRAW_AND_SAVE, str(tmp_path / seed)],
            check=True,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    suffixes = {name.removeprefix("timeline.") for name in names}
    assert suffixes == {"csv", "pdf", "png", "receipt.json", "svg"} | PGF
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


INPUT = b"# source: a table of ours (2020)\n# licence: none\n# source: another\nn_workers\n1\n"
RECIPE = {"notebook": "06-paper-figures", "parameters": {"MODEL": "resnet50", "N": 4}}
CAPTION = "Scaling factor against workers. <Ours> & others'."


@pytest.fixture
def saved(ax, tmp_path):
    """A figure saved with one input file; what it wrote lies in tmp_path/out."""
    (tmp_path / "input.csv").write_bytes(INPUT)
    draw_scaling(ax, SCALING, label="policy")
    parameters = {"alpha_s": np.float64(1e-6), "workers": [1, 2]}
    return save(ax.figure, "scaling", data=SCALING, folder=tmp_path / "out",
                inputs=[tmp_path / "input.csv"], parameters=parameters, recipe=RECIPE,
                caption=CAPTION)  # fmt: skip


def receipt_of(pdf: Path) -> dict:
    return json.loads(pdf.with_suffix(".receipt.json").read_text())


def test_pdf_fonts_are_embedded_as_truetype(saved):
    content = saved.read_bytes()
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.S)
    plain = content + b"".join(zlib.decompress(s) for s in streams if s[:1] == b"\x78")
    assert b"/CIDFontType2" in plain and b"/FontFile2" in plain and b"/Type3" not in plain


def test_fonts_are_embedded_even_when_saved_outside_the_paper_settings(saved):
    with mpl.rc_context({"pdf.fonttype": 3}):
        figure = Figure()
        figure.subplots().set_xlabel("time (ms)")
        pdf = save(figure, "other", data=SCALING, folder=saved.parent)
    assert b"/Type3" not in pdf.read_bytes()


def test_no_file_holds_a_date(saved):
    assert b"CreationDate" not in saved.read_bytes()
    assert "<dc:date>" not in saved.with_suffix(".svg").read_text()


def test_svg_text_stays_text(saved):
    assert "scaling factor</text>" in saved.with_suffix(".svg").read_text()


def test_the_data_come_back_from_the_csv(saved):
    pd.testing.assert_frame_equal(pd.read_csv(saved.with_suffix(".csv")), SCALING)


def test_the_receipt_has_the_hashes_of_what_was_read_and_written(saved):
    receipt = receipt_of(saved)
    assert receipt["inputs"] == {"input.csv": hashlib.sha256(INPUT).hexdigest()}
    suffixes = {"pdf", "svg", "png", "csv", "caption.txt"} | PGF
    assert set(receipt["written"]) == {f"scaling.{suffix}" for suffix in suffixes}
    for name, digest in receipt["written"].items():
        content = (saved.parent / name).read_bytes()
        assert digest == hashlib.sha256(content).hexdigest()


def test_the_receipt_tells_versions_and_parameters(saved):
    receipt = receipt_of(saved)
    assert receipt["parameters"] == {"alpha_s": 1e-6, "workers": [1, 2]}
    assert receipt["versions"]["matplotlib"] == mpl.__version__
    assert {"python", "workbench", "numpy", "pandas", "seaborn"} <= set(receipt["versions"])


def test_inputs_of_the_repository_are_told_by_their_path_in_it(ax, tmp_path):
    pdf = save(ax.figure, "empty", data=SCALING, folder=tmp_path,
               inputs=[REPOSITORY / "pyproject.toml"])  # fmt: skip
    assert list(receipt_of(pdf)["inputs"]) == ["pyproject.toml"]


def test_no_receipt_holds_an_absolute_path(saved):
    assert str(saved.parents[1]) not in saved.with_suffix(".receipt.json").read_text()


# --- the receipt, within the pictures too -------------------------------------------------------


def embedded(receipt: dict) -> dict:
    """What a receipt tells within the pictures: all but the files written, which they are."""
    return {name: value for name, value in receipt.items() if name not in ("written", "pgf")}


def test_the_receipt_tells_sources_caption_alt_text_and_recipe(ax, saved):
    receipt = receipt_of(saved)
    assert receipt["sources"] == {"input.csv": ["a table of ours (2020)", "another"]}
    assert receipt["caption"] == CAPTION
    assert receipt["alt"] == describe(ax.figure)
    assert receipt["recipe"] == RECIPE | {"paths": []}
    caption = saved.with_name("scaling.caption.txt").read_text()
    assert caption == CAPTION + "\n"


@pytest.mark.skipif(shutil.which("pdfinfo") is None, reason="no pdfinfo: apt install poppler-utils")
def test_the_pdf_has_the_receipt_among_its_keywords_and_the_alt_text_as_its_subject(saved):
    told = subprocess.run(["pdfinfo", saved], capture_output=True, text=True, check=True).stdout
    fields = dict(re.findall(r"^(\w+): +(.*)$", told, re.M))
    assert json.loads(fields["Keywords"]) == embedded(receipt_of(saved))
    assert fields["Subject"] == receipt_of(saved)["alt"] and fields["Title"] == "scaling"
    assert "CreationDate" not in fields


def test_the_svg_has_the_receipt_in_its_description_and_the_alt_text_for_screen_readers(saved):
    root = ElementTree.parse(saved.with_suffix(".svg")).getroot()
    svg, dc = "{http://www.w3.org/2000/svg}", "{http://purl.org/dc/elements/1.1/}"
    assert root.find(f"{svg}title").text == "scaling"
    assert root.find(f"{svg}desc").text == receipt_of(saved)["alt"]
    (told,) = root.iter(f"{dc}description")
    assert json.loads(told.text) == embedded(receipt_of(saved))


def test_the_png_is_of_300_dots_an_inch_and_tells_what_it_shows(saved):
    with Image.open(saved.with_suffix(".png")) as image:
        assert image.width == round(300 * paper()["figure.figsize"][0])
        assert image.text["Description"] == receipt_of(saved)["alt"]
        assert "Software" not in image.text


def test_the_commit_is_that_of_the_checkout(saved):
    call = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    try:
        head = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        assert commit() is None and receipt_of(saved)["git"] is None
        return
    assert head.startswith(commit()["commit"]) and len(commit()["commit"]) >= 12
    assert receipt_of(saved)["git"].keys() == {"commit", "changed"}


NO_GIT = """
import sys
from pathlib import Path
from workbench.drawing import provenance
provenance.REPOSITORY = Path(sys.argv[1])
print(provenance.commit())
"""


@pytest.mark.parametrize("path", ["", None])
def test_without_git_or_without_a_repository_there_is_no_commit(path, tmp_path):
    env = os.environ | ({} if path is None else {"PATH": path})
    call = [sys.executable, "-c", NO_GIT, str(tmp_path)]
    run = subprocess.run(call, capture_output=True, text=True, env=env, cwd=REPOSITORY, check=True)
    assert run.stdout == "None\n"


def test_a_caption_left_out_later_takes_its_file_with_it(ax, saved):
    save(ax.figure, "scaling", data=SCALING, folder=saved.parent)
    assert not saved.with_name("scaling.caption.txt").exists()


def test_a_recipe_tells_paths_as_those_of_the_repository(ax, tmp_path):
    data = REPOSITORY / "data"
    (tmp_path / "own").mkdir()
    given = {"DATA": data, "RUN": f"{data}/runs", "OWN": str(tmp_path / "own"), "MODEL": "data"}
    recipe = {"notebook": "x", "parameters": given}
    pdf = save(ax.figure, "one", data=SCALING, folder=tmp_path, recipe=recipe)
    assert receipt_of(pdf)["recipe"] == {
        "notebook": "x",
        "parameters": {"DATA": "data", "RUN": "data/runs", "OWN": "own", "MODEL": "data"},
        "paths": ["DATA", "OWN", "RUN"],
    }


@pytest.mark.parametrize("recipe", ["06", {"notebook": "x"}, {"notebook": "x", "parameters": 3}])
def test_what_is_no_recipe_is_refused(ax, tmp_path, recipe):
    with pytest.raises(ValueError, match=r"recipe: expected what settle\(...\) returned"):
        save(ax.figure, "one", data=SCALING, folder=tmp_path, recipe=recipe)


def test_a_caption_that_is_no_text_is_refused(ax, tmp_path):
    with pytest.raises(ValueError, match="caption: expected a text, got 3"):
        save(ax.figure, "one", data=SCALING, folder=tmp_path, caption=3)


def test_saving_twice_gives_the_same_bytes(ax, saved):
    before = {path.name: path.read_bytes() for path in saved.parent.iterdir()}
    save(ax.figure, "scaling", data=SCALING, folder=saved.parent,
         inputs=[saved.parents[1] / "input.csv"], recipe=RECIPE, caption=CAPTION,
         parameters={"alpha_s": 1e-6, "workers": [1, 2]})  # fmt: skip
    for path in saved.parent.iterdir():
        assert path.read_bytes() == before[path.name], path.name


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


@pytest.mark.slow
@pytest.mark.skipif(not PGF, reason="no pdflatex: apt install texlive-latex-base texlive-pictures")
def test_latex_sets_the_pgf_as_wide_as_the_column(saved):
    (saved.parent / "paper.tex").write_text(PAPER)
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    run = subprocess.run(call, cwd=saved.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    told = re.search(r"as wide as ([\d.]+)pt", run.stdout)
    assert float(told[1]) / 72.27 == pytest.approx(paper()["figure.figsize"][0], abs=0.01)
    assert receipt_of(saved)["pgf"] == "written with pdflatex"


def test_without_latex_the_receipt_says_in_a_sentence_that_there_is_no_pgf(tmp_path):
    code = DRAW_AND_SAVE
    env = os.environ | {"PATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=True, cwd=REPOSITORY,
                   env=env)  # fmt: skip
    told = json.loads((tmp_path / "out" / "timeline.receipt.json").read_text())["pgf"]
    assert told == "not written: no pdflatex on this machine"
    assert not (tmp_path / "out" / "timeline.pgf").exists()


@pytest.mark.skipif(not PGF, reason="no pdflatex: apt install texlive-latex-base texlive-pictures")
def test_a_text_that_latex_cannot_set_is_no_end_of_saving(ax, tmp_path):
    ax.set_xlabel("\N{HIRAGANA LETTER A}")
    with pytest.warns(UserWarning, match="Glyph .* missing from font"):
        pdf = save(ax.figure, "kana", data=SCALING, folder=tmp_path)
    assert receipt_of(pdf)["pgf"].startswith("not written: pdflatex cannot set")
    assert pdf.exists() and not pdf.with_suffix(".pgf").exists()


@pytest.mark.skipif(not PGF, reason="no pdflatex: apt install texlive-latex-base texlive-pictures")
def test_a_pgf_that_latex_would_take_minutes_for_is_not_written(ax, tmp_path):
    ax.plot(np.arange(9000) % 97, np.arange(9000) % 89, "o", ls="")
    pdf = save(ax.figure, "many", data=SCALING, folder=tmp_path)
    assert receipt_of(pdf)["pgf"].startswith("not written: LaTeX takes minutes")
    assert not pdf.with_suffix(".pgf").exists()


# --- what is refused ------------------------------------------------------------------------------

BAD_NAMES = ["", "..", "a/b", "../scaling", "/tmp/scaling", "a\\b", "a.pdf", "a.PNG", 5]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_holds_a_path_or_a_suffix_is_refused(ax, tmp_path, name):
    with pytest.raises(ValueError, match="plain file name"):
        save(ax.figure, name, data=SCALING, folder=tmp_path / "inside")
    assert not (tmp_path / "inside").exists()


def test_a_missing_input_is_named_before_anything_is_written(ax, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.json"):
        save(ax.figure, "scaling", data=SCALING, folder=tmp_path / "out", inputs=["absent.json"])
    assert not (tmp_path / "out").exists()


def test_a_dot_within_a_name_is_no_suffix(ax, tmp_path):
    assert save(ax.figure, "torch-2.6", data=SCALING, folder=tmp_path).name == "torch-2.6.pdf"


def test_an_axes_in_place_of_a_figure_is_answered_with_its_figure(ax, tmp_path):
    with pytest.raises(ValueError, match="expected a Matplotlib Figure, got Axes; pass ax.figure"):
        save(ax, "scaling", data=SCALING, folder=tmp_path)
    with pytest.raises(ValueError, match="got module; pass the fig of"):
        save(mpl, "scaling", data=SCALING, folder=tmp_path)


@pytest.mark.parametrize("folder", ["taken", "taken/below"])
def test_a_file_in_the_place_of_the_folder_is_named(ax, tmp_path, folder):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ValueError, match="taken is a file; name another folder"):
        save(ax.figure, "scaling", data=SCALING, folder=tmp_path / folder)


def test_a_folder_that_cannot_be_made_is_named(ax, tmp_path):
    folder = tmp_path / ("long" * 100)
    with pytest.raises(ValueError, match="folder .*long cannot be made .*; name another folder"):
        save(ax.figure, "scaling", data=SCALING, folder=folder)


@pytest.mark.parametrize("suffix", ["pdf", "pgf", "caption.txt", "receipt.json"])
def test_a_folder_in_the_place_of_a_file_is_named(ax, tmp_path, suffix):
    (tmp_path / f"there.{suffix}").mkdir()
    with pytest.raises(ValueError, match=rf"there\.{suffix} is a folder; expected a file"):
        save(ax.figure, "there", data=SCALING, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"there.{suffix}"]


def test_inputs_given_as_a_pattern_or_a_folder_are_hashed_file_by_file(ax, tmp_path):
    (tmp_path / "in" / "below").mkdir(parents=True)
    for name in ("rank0.json", "rank1.json", "below/notes.txt"):
        (tmp_path / "in" / name).write_text(name)
    figure, out = ax.figure, tmp_path / "out"
    pattern = save(figure, "one", data=SCALING, folder=out, inputs=f"{tmp_path}/in/*.json")
    assert set(receipt_of(pattern)["inputs"]) == {"rank0.json", "rank1.json"}
    folder = save(figure, "two", data=SCALING, folder=out, inputs=[tmp_path / "in"])
    assert set(receipt_of(folder)["inputs"]) == {"rank0.json", "rank1.json", "notes.txt"}


def test_a_pattern_that_matches_nothing_is_named(ax, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\*.json"):
        save(ax.figure, "one", data=SCALING, folder=tmp_path, inputs="none*.json")


def test_inputs_that_are_no_paths_are_refused(ax, tmp_path):
    with pytest.raises(ValueError, match="inputs: expected paths, got DataFrame"):
        save(ax.figure, "one", data=SCALING, folder=tmp_path, inputs=SCALING)


def test_a_table_among_the_parameters_is_refused_without_showing_it(ax, tmp_path):
    with pytest.raises(ValueError, match=r"\['runs'\] .* got DataFrame; name a table") as error:
        save(ax.figure, "one", data=SCALING, folder=tmp_path, parameters={"runs": SCALING})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [float("nan"), object(), [float("inf")]])
def test_a_parameter_that_is_no_plain_value_is_named(ax, tmp_path, value):
    with pytest.raises(ValueError, match="alpha_s"):
        save(ax.figure, "scaling", data=SCALING, folder=tmp_path, parameters={"alpha_s": value})


def test_inputs_of_one_name_are_all_hashed(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank0.json").write_text(folder)
    fig = Figure()
    inputs = [tmp_path / "a" / "rank0.json", tmp_path / "b" / "rank0.json"]
    pdf = save(fig, "two", pd.DataFrame({"x": [1]}), tmp_path / "out", inputs=inputs)
    assert list(receipt_of(pdf)["inputs"]) == ["rank0.json", "rank0.json #2"]


# --- names, inputs, parameters and texts of any kind ----------------------------------------------


@pytest.mark.parametrize(
    "name", ["a\nb", "a\0b", "a\ud800", " a", "\t", "a" * 201, "a.pgf", "a.txt"]
)
def test_a_name_that_no_file_should_have_is_refused_before_anything_is_written(ax, tmp_path, name):
    with pytest.raises(ValueError, match="save: name must be a plain file name"):
        save(ax.figure, name, SCALING, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_may_begin_at_home_and_holds_no_null(ax, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save(ax.figure, "home", SCALING, "~/figures") == tmp_path / "figures" / "home.pdf"
    with pytest.raises(ValueError, match="save: folder: a path holds no NUL"):
        save(ax.figure, "home", SCALING, "fig\0ures")


def test_sources_of_a_hostile_table_are_text_and_only_its_head_is_read(ax, tmp_path):
    told = "<script>alert(1)</script> ]]> &amp;"
    path = tmp_path / "hostile.CSV"
    path.write_text(f"\ufeff# source: {told}\n# source:\n#source: tight\nx\n# source: late\n")
    pdf = save(ax.figure, "hostile", SCALING, tmp_path / "out", [path])
    assert receipt_of(pdf)["sources"] == {"hostile.CSV": [told, "tight"]}
    (said,) = ElementTree.parse(pdf.with_suffix(".svg")).iter(
        "{http://purl.org/dc/elements/1.1/}description"
    )
    assert json.loads(said.text)["sources"] == {"hostile.CSV": [told, "tight"]}


def test_a_folder_without_a_file_is_no_input(ax, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)  # not followed: it may lead round
    with pytest.raises(FileNotFoundError, match="save: inputs: .*in: the folder holds no file"):
        save(ax.figure, "none", SCALING, tmp_path / "out", [tmp_path / "in"])


@pytest.mark.parametrize("path", [os.devnull, "x" * 5000])
def test_what_is_no_file_is_no_input(ax, tmp_path, path):
    with pytest.raises(ValueError, match="save: inputs: .* is no file"):
        save(ax.figure, "none", SCALING, tmp_path / "out", [path])


def test_files_of_one_name_are_numbered():
    paths = [Path("/far", str(k), "trace.json") for k in range(3)]
    assert list(by_name(paths)) == ["trace.json", "trace.json #2", "trace.json #3"]


def test_the_current_folder_is_told_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative(Path(".")) == tmp_path.name and found(tmp_path.name) is None
    assert relative(Path("/")) == "" and found("") is None


LOOP: list = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([1], "parameters: expected {name: value}, got list"),
        (SCALING, "parameters: expected {name: value}, got DataFrame"),
        ({"a": LOOP}, "holds itself"),
        ({"a": np.ma.masked}, r"parameters\['a'\] must be finite numbers"),
        ({"a": {"b": float("nan")}}, r"parameters\['a'\]\['b'\] must be finite numbers.*got nan"),
        ({"a": b"x"}, "got bytes"),
    ],
)
def test_parameters_that_are_none_are_named(ax, tmp_path, parameters, message):
    with pytest.raises(ValueError, match=message):
        save(ax.figure, "none", SCALING, tmp_path / "out", parameters=parameters)
    assert not (tmp_path / "out").exists()


def test_arrays_of_any_shape_are_plain_parameters(ax, tmp_path):
    given = {"point": np.array(3), "rows": np.arange(4).reshape(2, 2), "yes": np.True_}
    pdf = save(ax.figure, "arrays", SCALING, tmp_path, parameters=given)
    assert receipt_of(pdf)["parameters"] == {"point": 3, "rows": [[0, 1], [2, 3]], "yes": True}


@pytest.mark.filterwarnings("ignore:Glyph")
def test_no_text_makes_an_svg_that_is_no_xml(ax, tmp_path):
    ax.set_xlabel("a\0b\x1b ]]> <script>")
    ax.plot([0, 1], [0, 1], label="c\x0bd", gid="</g>\x01")
    pdf = save(ax.figure, "controls", SCALING, tmp_path, caption="e\0\ud800\ufffe")
    svg = ElementTree.parse(pdf.with_suffix(".svg")).getroot()
    assert svg.find("{http://www.w3.org/2000/svg}desc").text == receipt_of(pdf)["alt"]
    assert receipt_of(pdf)["caption"] == "e\0\ud800\ufffe"


def test_half_a_surrogate_in_the_data_is_written_as_its_escape(ax, tmp_path):
    pdf = save(ax.figure, "half", pd.DataFrame({"name": ["\ud800"]}), tmp_path)
    assert pdf.with_suffix(".csv").read_text() == "name\n\\ud800\n"


def test_a_figure_that_cannot_be_drawn_writes_nothing(ax, tmp_path):
    ax.set_title(r"$\frac{$")
    with pytest.raises(ValueError, match=r"^save bad: Matplotlib cannot draw the text '\$.frac"):
        save(ax.figure, "bad", SCALING, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_blank_caption_is_none(ax, tmp_path):
    save(ax.figure, "blank", SCALING, tmp_path, caption=" \n")
    assert not (tmp_path / "blank.caption.txt").exists()
