"""Cells as HTML that loads no other file: Markdown, MathML, and the frame of a page."""

from html import escape
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter

HERE = Path(__file__).parent


def body(notebook: nbformat.NotebookNode, path: Path) -> str:
    """Return the cells as HTML that contains its images and loads nothing."""
    exporter = HTMLExporter(
        template_name="basic",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        filters={"markdown2html": _markdown},
    )
    where = {"metadata": {"path": str(path.parent), "name": path.stem}}
    return exporter.from_notebook_node(notebook, resources=where)[0]


@pass_context
def _markdown(context, source: str) -> str:
    cell, where = context.get("cell", {}), context["resources"]["metadata"]["path"]
    return rendered(source, attachments=cell.get("attachments", {}), path=where)


def rendered(source: str, **options) -> str:
    """Return Markdown as HTML."""
    renderer = _Renderer(escape=False, embed_images=True, **options)
    return MarkdownWithMath(renderer=renderer).render(source)


class _Renderer(IPythonRenderer):
    """nbconvert's renderer of Markdown, with MathML instead of LaTeX for a script to set."""

    def block_math(self, body: str) -> str:
        return _math(body, "block")

    def inline_math(self, body: str) -> str:
        return _math(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return _math(rf"\begin{{{name}}}{body}\end{{{name}}}", "block")


def _math(latex: str, display: str) -> str:
    try:
        return convert(latex, display=display)
    except Exception:  # for LaTeX it does not know, the source is better than no page
        return f"<code>{escape(latex)}</code>"


def fill_template(template: str, **values) -> str:
    """Return a template of this folder with values, which are escaped unless marked safe."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    css = (HERE / "page.css").read_text(encoding="utf-8")
    code = HtmlFormatter(style="default").get_style_defs(".highlight")
    return environment.get_template(template).render(css=css + code, **values)
