"""The chat templates of real models, as the package `trl` carries them. They are read where they are and not copied."""

import importlib.util
import os
import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = "TRL_TEMPLATES"
"""Variable that names the folder; else that of the installed package."""
ENDS = {
    "cohere": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek": ["<｜end▁of▁sentence｜>"],
    "gemma4": ["<eos>", "<turn|>", "<|tool_response>"],
    "diffusion_gemma": ["<eos>", "<turn|>", "<|tool_response>"],
    "gemma": ["<end_of_turn>"],
    "glm4moe": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|call|>", "<|end|>"],
    "idefics3": ["<end_of_utterance>"],
    "smolvlm": ["<end_of_utterance>"],
    "llama3": ["<|eot_id|>"],
    "llava_next": ["</s>"],
    "muse_glimmer": ["<|eot|>"],
    "phi3": ["<|end|>"],
}
"""Stop tokens by the beginning of a template's name, eos_token first; all others end with <|im_end|>."""
_SPECIAL = re.compile(r"<[|｜][^<>{}'\" ]*?[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|</?[a-z_]+>|\[/?[A-Z_]+\]")


def template_files():
    """Return the templates by name, none where there is no such folder; those made for training are left out."""
    folder = os.environ.get(FOLDER, "")
    if not folder and (spec := importlib.util.find_spec("trl")) is not None and spec.origin is not None:
        folder = str(Path(spec.origin).parent / "chat_templates")
    files = sorted(Path(folder).glob("*.jinja")) if folder else []
    return {file.stem: file for file in files if not file.stem.endswith("_training")}


def stops_of(name):
    """Return the stop tokens of a template's models."""
    found = max((prefix for prefix in ENDS if name.startswith(prefix)), key=len, default="")
    return ENDS.get(found, ["<|im_end|>"])


def make_tokenizer(template, stops):
    """A tokenizer of single bytes in which the template's special tokens are tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = sorted({*_SPECIAL.findall(template), *stops} - {stops[0]})
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=stops[0], bos_token="<bos>", additional_special_tokens=special
    )
    made.chat_template = template
    return made
