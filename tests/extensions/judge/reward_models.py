"""Small reward models of transformers: random, or trained in seconds to prefer answers that say "yes"."""

import json
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from asyncrl.train.models.tiny_model import build_tokenizer

CORPUS = [
    "user",
    "assistant",
    "Is it so?",
    "yes",
    "no",
    "maybe",
    "a b c d e f g h i j k l m n o p",
    "0 1 2 3 4 5",
]
CONTEXT = 256
STEPS = 40


def conversation(answer, question="Is it so?"):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def make(folder, labels=("LABEL_0",), trained=False, encoder=False, pad=False):
    """Save a model with a head of these outputs and return its folder. pad: whether its description names padding."""
    folder = Path(folder)
    torch.manual_seed(0)
    tokenizer = build_tokenizer(CORPUS * 20, 400, CONTEXT)
    names = {"id2label": dict(enumerate(labels)), "label2id": {one: n for n, one in enumerate(labels)}}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    padding = {"pad_token_id": tokenizer.pad_token_id if pad or encoder else None}
    if encoder:
        model = BertForSequenceClassification(
            BertConfig(
                vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, **names, **sizes, **padding
            )
        )
    else:
        model = Qwen3ForSequenceClassification(
            Qwen3Config(
                vocab_size=len(tokenizer),
                num_key_value_heads=1,
                head_dim=16,
                max_position_embeddings=CONTEXT,
                **names,
                **sizes,
                **padding,
            )
        )
    if trained:
        _train(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _train(model, tokenizer):
    """Have the first output be 1 for "yes" and -1 for "no", whatever stands around it."""
    rows = [
        (tokenizer.apply_chat_template(conversation(f"{before}{word}{after}"), tokenize=False), worth)
        for word, worth in (("yes", 1.0), ("no", -1.0))
        for before in ("", "a ", "b c ", "maybe ")
        for after in ("", " d", " e f")
    ]
    given = tokenizer([text for text, _ in rows], add_special_tokens=False, padding=True, return_tensors="pt")
    worth = torch.tensor([one for _, one in rows])
    named, model.config.pad_token_id = model.config.pad_token_id, tokenizer.pad_token_id
    threads = torch.get_num_threads()
    # A machine that has other work, too, is slower with more.
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(STEPS):
        found = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).logits[:, 0]
        loss = ((found - worth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    model.config.pad_token_id = named


def rewrite(folder, name, **changes):
    """Change keys of a JSON file of a folder; None takes one away."""
    path = Path(folder) / name
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
