"""Tokens as a page shows them."""

from asyncrl.extensions.monitor.tokens import TokenTexts
from tests.run.folders import make_run


def test_tokens_are_texts_where_there_is_a_tokenizer_and_numbers_where_there_is_none(tmp_path):
    folder = make_run(tmp_path / "run")
    assert TokenTexts(folder).texts([246, 1]) == ["north", "word1"]
    bare = make_run(tmp_path / "bare")
    next(bare.glob("checkpoints/*/tokenizer.json")).unlink()
    assert TokenTexts(bare).texts([246]) == ["⟨246⟩"]
