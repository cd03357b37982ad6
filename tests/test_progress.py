import pytest

from workbench.base.progress import bar


@pytest.mark.parametrize("disabled", [False, True])
def test_every_item_passes_with_or_without_a_bar(monkeypatch, capsys, disabled):
    if disabled:
        monkeypatch.setenv("TQDM_DISABLE", "1")
    shown = bar(iter("ab"), "files", 2)
    assert shown.disable == disabled
    assert list(shown) == ["a", "b"]
    assert capsys.readouterr().err == ""
