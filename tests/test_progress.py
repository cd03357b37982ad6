"""Bars of progress: all items pass, and nothing is drawn where none is wanted."""

from workbench.base.progress import bar


def test_every_item_passes_with_or_without_a_bar(monkeypatch, capsys):
    assert list(bar(range(3), "files")) == [0, 1, 2]
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert list(bar(iter("ab"), "files", 2)) == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_the_variable_that_keeps_bars_away_does(monkeypatch):
    assert not bar(range(3), "files").disable
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert bar(range(3), "files").disable
