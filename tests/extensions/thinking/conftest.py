import pytest

from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save
from tests.conftest import CORPUS

CONTEXT = 256


@pytest.fixture(scope="session")
def thinker(tmp_path_factory):
    """A folder with a random model whose tokenizer has marks of thinking."""
    folder = tmp_path_factory.mktemp("thinker")
    tokenizer = build_tokenizer(CORPUS * 20, 400, CONTEXT)
    tokenizer.add_tokens(["<think>", "</think>"])
    save(folder, build_model(len(tokenizer), 64, 2, 2, CONTEXT, tokenizer.eos_token_id, seed=0), tokenizer)
    return str(folder)
