"""A GGUF file becomes the Hugging Face folder of the same model."""

import json

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from asyncrl.errors import InputError
from asyncrl.extensions.packaged_models.gguf_files import convert

NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
"""Of a layer's tensors in a GGUF file, by transformers'."""
HEADS, KV_HEADS = 4, 2


def small_model(vocab_size):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, max_position_embeddings=128, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    return LlamaForCausalLM(config)


def interleaved(weight, heads):
    """The rows of a projection in the order in which GGUF files of Llama models have them."""
    rows = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def write_gguf(path, model, tokenizer_folder):
    described = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    special = {token["content"] for token in described["added_tokens"]}
    writer = GGUFWriter(str(path), "llama")
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    merges = described["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            array = interleaved(array, HEADS if "q_proj" in name else KV_HEADS)
        if name.startswith("model.layers."):
            number, _, rest = name.removeprefix("model.layers.").partition(".")
            writer.add_tensor(f"blk.{number}.{NAMES[rest]}", array)
        elif name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", array)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_folder_has_the_weights_tokenizer_and_template_of_the_file(tiny_model, tmp_path):
    from pathlib import Path

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = small_model(len(tokenizer))
    write_gguf(tmp_path / "small.gguf", model, Path(tiny_model))
    folder = convert(tmp_path / "small.gguf", tmp_path / "folder")
    found = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, atol=0, rtol=0, msg=name)
    assert found.config.tie_word_embeddings
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(found(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    talk = [{"role": "user", "content": "go north"}, {"role": "assistant", "content": "north"}]
    read = AutoTokenizer.from_pretrained(folder)
    expected = tokenizer.apply_chat_template(talk, tokenize=False)
    assert read.apply_chat_template(talk, tokenize=False) == expected
    assert read.encode(expected) == tokenizer.encode(expected)
    assert read.eos_token_id == tokenizer.eos_token_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "small.gguf"]


def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"broken.gguf: transformers cannot read this GGUF file"):
        convert(tmp_path / "broken.gguf", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]
