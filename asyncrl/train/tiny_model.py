"""The tiny model under a name that scripts outside of this repository import; see `asyncrl.train.models.tiny_model`."""

from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save

__all__ = ["build_model", "build_tokenizer", "save"]
