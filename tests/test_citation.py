"""CITATION.cff holds what Citation File Format 1.2.0 asks for, and says what the package says."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CITED = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Keys of the schema (citation-file-format.github.io/1.2.0/schema), those in use here.
ROOT_KEYS = {
    *("cff-version", "message", "title", "authors", "type", "version", "date-released"),
    *("license", "keywords", "references", "abstract", "doi", "url", "repository-code"),
}
REFERENCE_KEYS = {
    *("type", "title", "authors", "collection-title", "publisher", "date-published", "year"),
    *("start", "end", "doi", "url", "notes", "conference", "pages"),
}
DOI = r"10\.\d{4,9}(\.\d+)?/[A-Za-z0-9:/_;\-.()\[\]\\]+"  # the schema's pattern


@pytest.fixture
def paper():
    (found,) = CITED["references"]
    return found


def test_it_has_what_the_format_requires_and_no_key_beyond_it(paper):
    assert CITED["cff-version"] == "1.2.0"
    assert {"cff-version", "message", "title", "authors"} <= set(CITED) <= ROOT_KEYS
    assert {"type", "title", "authors"} <= set(paper) <= REFERENCE_KEYS


def test_it_cites_the_version_that_is_installed_and_its_licence():
    assert str(CITED["version"]) == PROJECT["version"]
    assert CITED["license"] == PROJECT["license"]
    assert isinstance(CITED["date-released"], date)


def test_the_changelog_has_the_version_on_the_same_day():
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{CITED['version']}] - {CITED['date-released']}" in log


def test_the_paper_is_an_article_with_the_doi_that_the_readme_links(paper):
    assert paper["type"] == "article"
    assert re.fullmatch(DOI, paper["doi"])
    assert f"https://doi.org/{paper['doi']}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_authors_are_the_contributors_and_those_of_the_paper_have_names(paper):
    assert CITED["authors"] == [{"name": "OSF workbench contributors"}]
    assert len(paper["authors"]) == 10
    assert all(set(a) <= {"family-names", "given-names"} for a in paper["authors"])
    assert all(author["family-names"] for author in paper["authors"])
