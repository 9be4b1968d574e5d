"""The JSON messages of Tinker's protocol that this server reads. What it does not know, it does not read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Names of checkpoints: they are names of files, too."""
ID = r"^[A-Za-z0-9][A-Za-z0-9:._-]{0,127}$"
Id = Annotated[str, Field(pattern=ID)]
Number = Annotated[int, Field(ge=0, lt=2**62)]
About = dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=4096)]]
MAX_SAMPLES = 1024


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=False)


class CreateSession(Message):
    tags: list[str] = Field(default=[], max_length=256)
    user_metadata: About | None = None
    sdk_version: str = ""
    display_name: str | None = None


class Session(Message):
    session_id: Id


class LoraSettings(Message):
    rank: int = Field(ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerSettings(Message):
    type: str = "adamw"


class CreateModel(Message):
    session_id: Id
    model_seq_id: Number
    base_model: str
    user_metadata: About | None = None
    lora_config: LoraSettings | None = None
    optimizer_config: OptimizerSettings = OptimizerSettings()


class LoadWeights(Message):
    """Either of a policy that is there (`model_id`, `seq_id`), or of one that is made by it."""

    model_id: Id | None = None
    seq_id: Number | None = None
    session_id: Id | None = None
    model_seq_id: Number | None = None
    base_model: str | None = None
    user_metadata: About | None = None
    path: str
    optimizer: bool


class OfModel(Message):
    model_id: Id


class AdamParams(Message):
    learning_rate: float = Field(default=1e-4, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip_norm: float = Field(default=0.0, ge=0)


class OptimStep(Message):
    model_id: Id
    seq_id: Number
    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(Message):
    model_id: Id
    seq_id: Number
    path: Annotated[str, Field(pattern=NAME)] | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)
    overwrite: bool = False
    user_metadata: About | None = None


class SaveForSampler(SaveWeights):
    sampling_session_seq_id: Number | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"


class SaveExternal(SaveWeights):
    path: Annotated[str, Field(pattern=NAME)]
    age_encryption_recipients: list[str] | None = None


class CopyWeights(Message):
    source_path: str
    destination_project_id: str | None = None
    ttl_seconds: int | None = Field(default=None, ge=1)


class CreateSampler(Message):
    session_id: Id
    sampling_session_seq_id: Number
    base_model: str | None = None
    model_path: str | None = None


class Chunk(Message):
    type: str = "encoded_text"
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None


class ModelInput(Message):
    chunks: list[Chunk]


class SamplingParams(Message):
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[int] | list[str] | None = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)


class Sample(Message):
    num_samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    prompt: ModelInput
    sampling_params: SamplingParams
    sampling_session_id: Id | None = None
    seq_id: Number | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0)
    topk_sample_logprobs: int = Field(default=0, ge=0)
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    record_stability_info: bool | None = None


class Retrieve(Message):
    request_id: Annotated[str, Field(max_length=300)]


class Path(Message):
    tinker_path: str


class TimeToLive(Message):
    ttl_seconds: int | None = Field(default=None, ge=1)
