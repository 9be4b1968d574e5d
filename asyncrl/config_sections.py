"""The sections of a run's configuration: every setting with its type, default, bounds and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeGuard, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

SCHEDULES: dict[str, int | None] = {
    "synchronous": 0,
    "periodic": 0,
    "one_step_off": 1,
    "asynchronous": None,
    "partial": None,
}
"""How generation and training overlap (docs/schedules.md), with the staleness limit where the name implies it."""

EPISODE_S, SLOW_TOKENS = 600.0, 20
"""The time of an episode that is short, and how many tokens a second a long one has at least."""
HEAD_SIZE = 32
"""The size of a head of the tiny base model's attention: vLLM's attention on a CPU takes multiples of it."""


def is_url(path: str) -> bool:
    """True for the address of a server, where a model may be named too."""
    return path.startswith(("http://", "https://"))


def empty_or_url(value: str) -> str:
    """Check an address that may be left out. Raises `ValueError`."""
    if value and not is_url(value):
        raise ValueError("must begin with http:// or https://")
    return value


RENDERED = (
    "conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "return_assistant_tokens_mask", "bos_token", "eos_token",
)  # fmt: skip
"""What rendering sets itself, and so is no variable of a chat template that may be given."""


def check_template_args(given: dict[str, Any]) -> dict[str, Any]:
    """Return variables of a chat template. Raises `ValueError` for one that rendering sets itself, and for what is no
    name."""
    for name in given:
        if not name.isidentifier() or name in RENDERED:
            raise ValueError(f"{name}: is no variable that a chat template can be given")
    return given


SELDOM = "seldom"
T = TypeVar("T")
Seldom = Annotated[T, SELDOM]
"""A setting that most runs leave alone; docs/configuration.md lists it after the others."""
PATH = "path"
"""Marks a setting that names a file or folder, whatever it begins with: `~` and variables in it are expanded."""


class Section(BaseModel):
    """A table of settings. The text below a field describes it; `asyncrl.commands.config_page` reads it there, so that
    processes that never show it need not."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    fixed: ClassVar[bool] = False
    """Whether it is part of what makes a run the run it is: it cannot change when the run is resumed."""
    of_further_policies: ClassVar[Mapping[str, Any]] = {}
    """The values that its keys have for a further policy, whatever the recipe gives."""
    composed: ClassVar[bool] = False
    """Whether it is made of a core's section and keys of extensions, see `asyncrl.extensions.settings`."""

    @property
    def numbers(self) -> Mapping[str, tuple[int, int]]:
        """Least and most processes by role ("rollout", "env", "engine"), of those whose number it lets change."""
        return {}


def is_section(kind: Any) -> TypeGuard[type[Section]]:
    """True for the class of a table of settings."""
    return isinstance(kind, type) and issubclass(kind, Section)


class RunConfig(Section):
    """Where the run lives, what makes it repeatable, and how long its processes may take."""

    fixed: ClassVar[bool] = True

    name: str = Field("", max_length=100, pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]*)?$")
    """Name of the run's folder; empty takes the recipe's name and the first free number. Letters, digits and `._-`."""
    folder: Annotated[str, PATH] = "runs"
    """Folder that holds the folders of runs, relative to the current one."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of new parameters, of the engines and, where `buffer.max_staleness` is 0, of each turn's sampling."""
    python_path: Seldom[Annotated[list[str], PATH]] = Field(default_factory=list)
    """Folders in which import paths such as `my_env:MyEnv` are found, beside the one the run was started in."""
    threads: int = Field(0, ge=0)
    """CPU threads of each engine, each trainer rank and the supervised start; 0 lets vLLM and torch choose. Set it
    where they share a CPU, with other work, too: threads that wait for a core keep the others waiting."""
    start_timeout_s: Seldom[float] = Field(300.0, gt=0)
    """Seconds without progress (CPU time, output, data) after which the start of a process has failed. One that
    computes, as when it compiles, may take five times as long, and one that loads or downloads a model as long as data
    moves."""
    silence_timeout_s: Seldom[float] = Field(60.0, gt=0)
    """Seconds after which a process that neither answers nor makes progress (CPU time, data) is killed and started
    again. One that computes without answering is left to it for half an hour, and one that moves data for longer."""
    node_timeout_s: Seldom[float] = Field(60.0, ge=5)
    """Seconds that a lost node's processes wait for it before they start on another one with room. A node that has not
    heard from the launcher for so long ends them."""

    @property
    def tensorboard(self) -> bool:
        """Whether the trainer writes the metrics of steps as TensorBoard's files, too."""
        return True


class ModelConfig(Section):
    """The policy to start from."""

    fixed: ClassVar[bool] = True

    path: str
    """A Hugging Face folder, a hub name, or "sft" for a tiny base model that is trained on scripted episodes."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights in trainer and engines. "auto": bfloat16 where there is a GPU, else float32."""
    tool_format: str = Field("hermes", min_length=1)
    """How the model writes tool calls: hermes (Qwen), llama, mistral, harmony (gpt-oss), or the name of one of vLLM's
    tool-call parsers, such as qwen3_coder, glm45, deepseek_v31, kimi_k2 (docs/tool-formats.md)."""
    reasoning_format: str = ""
    """How the model writes its reasoning: think (`<think>...</think>`), or the name of one of vLLM's reasoning parsers.
    What they find is split from the text that environments get; empty leaves it there."""
    chat_template: Seldom[str] = ""
    """File of a chat template that takes the place of the model's own."""
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template, such as `{ enable_thinking = false }` or `{ reasoning_effort = "low" }`: the same
    in training, evaluation, the gateway and `asyncrl serve policy CHECKPOINT`."""

    @field_validator("chat_template_args")
    @classmethod
    def _template_args(cls, value: dict[str, Any]) -> dict[str, Any]:
        return check_template_args(value)


MAX_STEP_S = 86_400.0
"""No step of a session may take longer."""


class EnvConfig(Section):
    """The environment and where its sessions run."""

    fixed: ClassVar[bool] = True

    name: str
    """One that `asyncrl env list` shows, an import path such as `my_env:MyEnv`, "agent" (docs/gateway.md), or a known
    data set such as "gsm8k". Left out where `data` has rows, it follows from them (docs/data.md)."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment itself, passed to its constructor and its list of tasks."""
    task_file: Seldom[Annotated[str, PATH]] = ""
    """File of tasks, a JSON object {"id", "seed", "data"} a line, that replaces the environment's own list."""
    num_tasks: Seldom[int] = Field(0, ge=0)
    """Tasks of the whole run, which ends when they are used up; 0 takes as many as the steps need."""
    step_timeout_s: Annotated[float, Field(gt=0, le=MAX_STEP_S)] | Literal["auto"] = "auto"
    """Seconds that one step of a session may take. "auto" is what the environment needs for its own limits of time,
    such as those of commands and tests, and 30 at least."""
    services: Seldom[Annotated[int, Field(ge=0)] | Literal["auto"]] = "auto"
    """Environment services, which share the sessions. On several machines they are spread. 0 runs sessions in the
    rollout workers, which costs least, where the environment allows it (docs/environments.md). "auto" is 0 there and 1
    otherwise, and where `env.processes`, `env.secrets` or `scale.env` ask for a service."""
    processes: Seldom[int] = Field(0, ge=0)
    """Worker processes of each environment service; 0 runs all sessions inside the service."""
    max_sessions: Seldom[int] = Field(1024, ge=1)
    """Sessions that each service, or without any each rollout worker, has open at once; further episodes wait for a
    place."""
    limits: Seldom[dict[str, Annotated[int, Field(ge=1)]]] = Field(default_factory=dict)
    """The same for single environments, by name, such as `{ browser = 8 }`, also for those inside a mix."""
    secrets: Seldom[list[str]] = Field(default_factory=list)
    """Environment variables with keys that the environment needs. All others that look like secrets (`*_API_KEY`,
    `*_TOKEN`, ...) are withheld from it, but for those that `config` names."""

    @property
    def given_step_s(self) -> float | None:
        """`step_timeout_s`; None where it follows from the environment."""
        return None if self.step_timeout_s == "auto" else self.step_timeout_s

    @model_validator(mode="after")
    def _place(self) -> EnvConfig:
        if self.services == 0 and self.processes:
            raise ValueError(f"processes: must be 0 for services=0, which starts none, got {self.processes}")
        return self


class DataSource(Section):
    """Rows to read: a local file or folder, or a data set of the hub."""

    path: str = Field(min_length=1)
    """A file (.jsonl, .json, .csv, .tsv, .parquet, .arrow, also with .gz or .zst), a folder of them or one that
    `datasets` saved, or a name on the hub such as "openai/gsm8k"."""
    config: str = ""
    """Configuration (subset) of a data set of the hub."""
    split: str = ""
    """Split of the hub or of a saved folder; empty is "train" for training, and the one that is there for files."""
    revision: str = ""
    """Commit, branch or tag of the hub."""
    first: int = Field(0, ge=0)
    """Rows to read, from the beginning; 0 for all. A data set of the hub is then not downloaded as a whole."""
    weight: float = Field(0.0, ge=0)
    """Share of the rows drawn from this source among those of several, relative to the others' weights; 0 for all takes
    every row of all sources once an epoch."""


Sources = str | DataSource | list[str | DataSource]


class DataConfig(Section):
    """Your own data set as tasks: which rows are trained on, which are held out, and what of a row is prompt and
    answer (docs/data.md)."""

    fixed: ClassVar[bool] = True

    set: Seldom[str] = ""
    """A known data set whose columns, prompt and reward hold for `train` and `heldout` (docs/data.md), such as
    "gsm8k". Its rows are read from the hub where `train` is empty. "none": `train` is none, whatever its name."""
    train: Sources = ""
    """Rows to train on: a file, folder or hub name, a table of `path`, `config`, `split`, `revision`, `first` and
    `weight`, or a list of them."""
    heldout: Sources = ""
    """Rows for evaluation, which are never trained on, in the same forms."""
    heldout_share: float = Field(0.05, ge=0, lt=1)
    """Share of the prompts of `train` that is held out where there are no other held-out rows."""
    prompt: str = ""
    """The user's message, with columns in braces such as "{question}", or the name of a column that holds a text or a
    list of messages. Empty takes that of the set, or the column called messages, prompt, question or problem with what
    belongs to it, such as a passage and choices."""
    system: str | None = None
    """System message before it, which may have columns in braces, too; "" for none. Left out, that of the set."""
    answer: str = ""
    """Column with the right answer, which the reward reads as `answer`; or columns in braces. Empty takes that of the
    set, or the column called answer, expected_answer, solution or ground_truth."""
    images: Seldom[str] = ""
    """Column with an image or a list of images, as such or by the names of their files. They are shown where the prompt
    has `<image>`, else before it."""
    reward: str | list[str | dict[str, Any]] = ""
    """What scores an answer (docs/rewards.md): "math", "exact", ..., "my.py:f", or a list of these with weights. Empty
    takes that of the set."""
    max_prompt_tokens: Seldom[int] = Field(0, ge=0)
    """Leave out rows whose prompt has more tokens, without what the chat template adds; 0 keeps all."""
    dedupe: Seldom[bool] = False
    """Leave out training rows whose prompt stands in an earlier row, or in a held-out one. Without it, a held-out
    prompt among the training rows is refused."""
    limit: Seldom[int] = Field(0, ge=0)
    """Rows to train on at most, the first ones; 0 for all."""
    shuffle: Seldom[bool] = True
    """Take the rows of each epoch in an order of its own. False keeps their order."""
    seed: Seldom[int] = Field(0, ge=0)
    """The seed of that order, of the draws among weighted sources, and of the held-out share."""

    @field_validator("reward", mode="before")
    @classmethod
    def _one_table(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value


RANK_ARGUMENTS = {
    "tensor-parallel-size": "engine.tensor_parallel", "tp": "engine.tensor_parallel",
    "pipeline-parallel-size": "engine.pipeline_parallel", "pp": "engine.pipeline_parallel",
    "data-parallel-size": "engine.count", "dp": "engine.count", "data-parallel-size-local": "engine.count",
}  # fmt: skip
"""Arguments of `vllm serve` that decide how many GPUs an engine takes, with the keys that placement counts."""


def _ranks_by_keys(words: list[str]) -> list[str]:
    for word in words:
        name = word.partition("=")[0].lstrip("-").replace("_", "-")
        if word.startswith("-") and name in RANK_ARGUMENTS:
            raise ValueError(
                f"{word.partition('=')[0]} would have the engine take GPUs that its placement does not count; set "
                f"{RANK_ARGUMENTS[name]}"
            )
    return words


class EngineConfig(Section):
    """The vLLM servers that sample."""

    count: int = Field(1, ge=1)
    """Number of engines."""
    max_model_len: int = Field(2048, ge=16)
    """Tokens of context, which is also the most that a trajectory may have."""
    max_num_seqs: int = Field(256, ge=1)
    """Sequences that an engine decodes at once."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    """Share of a GPU's memory that an engine takes. "auto" follows from what else is on the GPU (docs/placement.md).
    Unused on a CPU."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs, or processes on a CPU, that one engine is split over."""
    pipeline_parallel: Seldom[int] = Field(1, ge=1)
    """Parts of consecutive layers that one engine is split into, with `tensor_parallel` GPUs each: between machines
    that takes far less of a network than splitting each layer (docs/scaling.md)."""
    weight_transfer: Seldom[str] = "shared_file"
    """How new weights reach the engines: "shared_file", by a file that both sides see; the name of an extension that
    carries weights, for engines on other machines (docs/transports.md); or an import path such as
    `my_carrier.py:MyCarrier` (docs/engine-and-trainer.md)."""
    weights_dir: Seldom[Annotated[str, PATH]] = ""
    """Folder in which runs publish their weights; empty for shared memory. It holds three copies of them, and two more
    for engines that keep copies of their own (docs/transports.md)."""
    keep_kv: Seldom[bool] = False
    """Let running requests keep their KV cache when new weights arrive. It saves computing their tokens again, and what
    they sample then depends on both versions (docs/schedules.md)."""
    extra_args: Seldom[Annotated[list[str], AfterValidator(_ranks_by_keys)]] = Field(default_factory=list)
    """Further arguments of `vllm serve`; they follow asyncrl's own and win over them. Those that decide how many GPUs
    an engine takes are refused: they have keys, which its placement counts."""

    @property
    def ranks(self) -> int:
        """GPUs, or processes on a CPU, of one engine."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def num_machines(self) -> int:
        """Machines over which one engine is spread evenly."""
        return 1

    @property
    def ranks_each(self) -> int:
        """Those that it has on each of its machines."""
        return self.ranks // self.num_machines

    @property
    def said_ranks(self) -> str:
        """The keys and values that `ranks` follows from."""
        stages = (
            f" x engine.pipeline_parallel = {self.pipeline_parallel}" if self.pipeline_parallel > 1 else ""
        )
        return f"engine.tensor_parallel = {self.tensor_parallel}{stages}"


class PlacementConfig(Section):
    """Which GPUs each process has, as numbers from 0 among those that `CUDA_VISIBLE_DEVICES` leaves the run. What is
    left out follows from their number (docs/placement.md). Unused on a CPU, but for `sleep`."""

    trainer: Seldom[list[Annotated[int, Field(ge=0)]]] = Field(default_factory=list)
    """GPUs of the trainers' ranks, those of further policies after the main one's; left out, the first."""
    engines: Seldom[list[Annotated[int, Field(ge=0)]]] = Field(default_factory=list)
    """GPUs of the engines, `engine.tensor_parallel` for each; left out, those after the trainers'. A GPU that is the
    only one, or is also named in `trainer`, is shared."""
    evaluation: Seldom[list[Annotated[int, Field(ge=0)]]] = Field(default_factory=list)
    """GPUs of the engine of periodic evaluations; left out, the next ones, or those of the last engine."""
    servers: Seldom[list[Annotated[int, Field(ge=0)]]] = Field(default_factory=list)
    """GPUs left to servers that are started apart, such as a judge, a reference or a teacher behind a URL."""
    sleep: bool | Literal["auto"] = "auto"
    """Let engines give up their GPU memory while the trainer works, and the trainer its own while they do. "auto":
    where they share a GPU under `train.schedule = "synchronous"`."""


class RolloutConfig(Section):
    """How episodes are played."""

    workers: int = Field(1, ge=1)
    """Rollout worker processes. Left out on a machine with GPUs, as many as play the turns that `engine.count` engines
    answer, by `max_tokens_per_turn`."""
    group_size: int = Field(8, ge=1)
    """Episodes of one task, whose rewards are compared with each other."""
    max_turns: int = Field(0, ge=0)
    """Turns of an episode; 0 takes the environment's own limit."""
    max_tokens_per_turn: int = Field(256, ge=1)
    """Tokens that the policy may write in one turn."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the episodes that are trained on."""
    groups_in_flight: Seldom[int] = Field(0, ge=0)
    """Groups that one worker plays at once; 0 takes its share of what the staleness limit admits."""
    episode_timeout_s: float = Field(EPISODE_S, gt=0)
    """Seconds that an episode may take before it counts as timed out, without those in which its turns are sampled; and
    seconds in which an engine that is asked for turns may answer none. Left out, as many as `engine.max_model_len`
    tokens take at 20 a second, 600 at least."""
    lease_s: Seldom[float] = Field(120.0, gt=0)
    """Seconds of silence after which a worker's groups go to others and its sessions are closed. Workers renew their
    leases every third of it."""
    batch_delay_s: Seldom[float] = Field(0.0, ge=0, le=10)
    """Least seconds between two calls of a worker to an engine or environment service; what is due meanwhile is sent
    together. A few hundredths of a second save work on a busy CPU."""


class BufferConfig(Section):
    """What makes a batch, and how old its samples may be."""

    groups_per_step: int = Field(16, ge=1)
    """Groups that one step trains on."""
    max_staleness: int = Field(1, ge=0)
    """Steps by which the weights that sampled a token may lag behind those that train on it; 0 is on-policy."""
    drop_no_signal: Seldom[bool | None] = None
    """Drop groups whose episodes agree in all that the objective reads of their rewards: they carry no gradient, and
    others are played in their place, at most four batches' worth in a step. Left out, that is done where the objective
    allows it; a critic, a teacher, a KL penalty and the like learn from every group."""
    wait_timeout_s: Seldom[float] = Field(EPISODE_S, gt=0)
    """Seconds in which no group of a batch becomes ready, from when there are tasks, after which the trainer ends the
    run. Left out, twice `rollout.episode_timeout_s` where that is above 600, else 600."""
    over_provision: Seldom[int | Literal["auto", "all"]] = "auto"
    """Groups in flight beyond one step's: so many, or "all" that the staleness limit allows, which caps them in any
    case. "auto": one step's, more where that makes generation faster, fewer where groups wait for the trainer."""
    recycle: Seldom[bool] = True
    """Let unfinished groups go on after a step. False starts them again, which favours short ones: for comparison."""
    token_budget: Seldom[int] = Field(0, ge=0)
    """Sampled tokens with which a step is complete even before it has all its groups; 0 for none. Needs
    `over_provision`."""

    @property
    def may_move(self) -> bool:
        """Whether it goes on on another machine when its own is lost."""
        return False

    @field_validator("over_provision", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value in ("auto", "all") or (type(value) is int and value >= 0):
            return value
        raise ValueError('must be a whole number from 0 on, "auto" or "all"')


class TrainConfig(Section):
    """The optimizer, its schedule, and what the trainer keeps."""

    schedule: Literal["synchronous", "periodic", "one_step_off", "asynchronous", "partial"] = "partial"
    """How generation and training overlap (docs/schedules.md); the first three imply `buffer.max_staleness`."""
    num_steps: int = Field(10, ge=1)
    """Training steps, each on one batch."""
    learning_rate: float = Field(1e-6, ge=0)
    """Learning rate after the warm-up; at 0 nothing is trained, see `asyncrl train --check-lr-zero`."""
    optimizer: Seldom[Literal["adamw", "muon", "adamw_8bit"]] = "adamw"
    """What updates the weights (docs/large-models.md): muon has half of adamw's states, adamw_8bit a quarter."""
    betas: Seldom[tuple[float, float]] = (0.9, 0.95)
    """Decay rates of AdamW's averages of the gradient and of its square."""
    warmup_steps: int = Field(0, ge=0)
    """Steps in which the learning rate rises from near 0."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up; the last two take it to near 0 by the last of `num_steps`."""
    num_minibatches: int = Field(1, ge=1)
    """Optimizer steps taken on each batch."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens of one forward pass: padded ones, or those that are computed where rows share what they begin with
    (docs/rollouts.md). Lower it when the trainer runs out of memory."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    """What DeepSpeed spreads over the ranks: 1 optimizer states, 2 also gradients, 3 also weights."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """What stays in host memory between its uses under ZeRO stage 3: the optimizer's states, or the weights, too."""
    offload_folder: Seldom[Annotated[str, PATH]] = ""
    """A folder on a local NVMe disk in whose files `offload` keeps it instead, where host memory has no room for all of
    it (docs/large-models.md)."""
    ranks: int = Field(1, ge=1)
    """Trainer processes, one a GPU."""
    sequence_parallel: Seldom[int] = Field(1, ge=1)
    """Ranks that compute the same rows together, each a part of the tokens, for rows that one GPU has no room for. It
    divides `ranks` and the model's number of heads (docs/memory.md)."""
    tensor_parallel: Seldom[int] = Field(1, ge=1)
    """Ranks that have a part of each linear layer and compute the same rows, for layers that one GPU has no room for.
    It divides `ranks` and the model's heads (docs/large-models.md)."""
    stall_timeout_s: Seldom[float] = Field(600.0, gt=0)
    """Seconds that a rank may need for one micro-batch, or wait for another rank or for a checkpoint to be written,
    beyond the time that publishing may wait for an engine. A trainer that takes longer hangs: it is killed and started
    again."""
    fused_logprobs: Seldom[bool] = False
    """On GPUs compute log-probabilities by liger-kernel's fused kernel where nothing else of the distribution is read
    (docs/engine-and-trainer.md)."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, about a third more time."""
    offload_activations: Seldom[bool] = False
    """Keep in host memory what `gradient_checkpointing`, which must be on, keeps for the backward pass."""
    checkpoint_every: int = Field(10, ge=0)
    """Steps between checkpoints, and the most that a crash of the trainer costs; 0 keeps only the last version."""
    on_poison: Seldom[Literal["continue", "stop"]] = "continue"
    """What follows a group that makes the loss or gradient NaN, when it has been saved and left out."""
    max_logp_error: Seldom[float] = Field(0.25, ge=0)
    """Mean absolute difference, in nats, between the log-probabilities that a worker sent and those the trainer
    computes, above which the worker is quarantined or its engine started again; 0 compares none."""

    @property
    def num_machines(self) -> int:
        """Machines over which the ranks are spread evenly."""
        return 1

    @property
    def ranks_each(self) -> int:
        """Ranks on each of the machines."""
        return self.ranks // self.num_machines

    @property
    def kept_states(self) -> Mapping[str, float]:
        """What a machine keeps of the training state where it has published weights, by the key that asks for it: how
        many times the whole one."""
        return {}

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class LoraConfig(Section):
    """Low-rank adapters trained instead of all weights (arXiv 2106.09685, without dropout); see docs/lora.md."""

    fixed: ClassVar[bool] = True

    rank: int = Field(0, ge=0, le=512)
    """Rank of the adapters; 0 trains all weights."""
    alpha: int = Field(16, ge=1)
    """The adapter's product is scaled by alpha / rank."""
    target_modules: Seldom[list[str]] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    """Names of the linear layers that get an adapter."""

    @field_validator("target_modules")
    @classmethod
    def _inner_layers(cls, value: list[str]) -> list[str]:
        wrong = sorted({"lm_head", "embed_tokens"} & set(value))
        if wrong:
            raise ValueError(f"must name layers inside the transformer blocks, not {wrong[0]!r}")
        return value


class OtherModelConfig(Section):
    """Another model than the policy, which objectives read."""

    path: str = ""

    @classmethod
    def is_name(cls, path: str) -> bool:
        """Return whether a path is a name of the section's own, which stands for no folder, hub name or address."""
        return False

    @property
    def is_loaded(self) -> bool:
        """True where the model is loaded from a folder or a hub."""
        return self.path != "" and not is_url(self.path) and not self.is_name(self.path)


class ReferenceConfig(OtherModelConfig):
    """The reference policy of KL terms and preference pairs."""

    path: str = ""
    """A Hugging Face folder, a hub name, or the address (http://...) of a vLLM server that serves it, whose API key is
    read from ASYNCRL_SCORER_KEY. Empty takes the model that the run starts from."""
    refresh_every: Seldom[int] = Field(0, ge=0)
    """Steps after which the reference becomes the current policy; 0 never."""


class EvalConfig(Section):
    """Held-out evaluation before, during and after training."""

    of_further_policies: ClassVar[Mapping[str, Any]] = {"tasks": 0}

    tasks: int = Field(100, ge=0)
    """Held-out tasks, each played once; 0 turns evaluation off."""
    every: int = Field(0, ge=0)
    """Steps between evaluations of checkpoints while training goes on, each on an engine of its own; 0 for none."""
    temperature: Seldom[float] = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""


SCRIPTED, TRAINED_ON = "scripted", "train"
"""What `sft.data` may name instead of a source: the environment's scripted episodes, and the rows of `data.train`."""
IMITATES = ("likelihood", "one_token")
"""Values of `sft.objective` by which a model learns to write rows; by all others it compares answers."""


class SftConfig(Section):
    """Supervised training (docs/sft.md): the start of a model of yours on rows of conversations, or the tiny base model
    of `model.path = "sft"` on scripted episodes. `asyncrl sft` does either alone."""

    data: Sources = ""
    """Rows that a model of yours learns from before the run trains it: sources as in `data.train`, with messages, or a
    prompt and a completion; "train" for the rows of `data.train`; the folder of a run for the episodes it has solved;
    "scripted" for those of the environment's expert. Empty: no supervised start, and with `asyncrl sft` the rows of
    `data.train`."""
    prompt: Seldom[str] = ""
    """The user's message as in `data.prompt`, which is taken where this is empty."""
    completion: str = ""
    """What the model learns to write after the prompt: a column, or a text with columns in braces such as "{Equation} =
    {Answer}". Empty takes the messages, or the column called completion, else the right answer."""
    objective: Seldom[Literal["likelihood", "one_token", "dpo", "ipo", "kto"]] = "likelihood"
    """What is learned: to write the rows, by their likelihood or, with tokens drawn from the model itself, by policy
    gradient (one_token); (dpo, ipo) to prefer the column `chosen` to the column `rejected`; or (kto) to write what the
    column `label` calls true, and not what it calls false."""
    chosen: Seldom[str] = ""
    """Column with the preferred answer. Empty takes chosen, chosen_response or preferred_output."""
    rejected: Seldom[str] = ""
    """Column with the other answer. Empty takes rejected, rejected_response or non_preferred_output."""
    beta: Seldom[float] = Field(0.1, gt=0)
    """How strongly dpo, ipo and kto hold the model to the one it started from."""
    min_reward: Seldom[float | None] = None
    """Keep rows whose `reward` is at least this. Left out, all rows are kept, and of a run's episodes those that
    succeeded."""
    limit: Seldom[int] = Field(0, ge=0)
    """Rows to learn from at most, the first ones; 0 for all."""
    max_length: Seldom[int] = Field(0, ge=0)
    """Tokens of a row at most, longer ones are left out; 0 takes `engine.max_model_len`."""
    epochs: float = Field(1.0, gt=0)
    """How often each row is learned from, where `steps` is 0."""
    steps: int = Field(0, ge=0)
    """Optimizer steps; 0 takes those of `epochs`, and for the tiny base model 400."""
    batch_size: Seldom[int] = Field(32, ge=1)
    """Rows of one optimizer step; with `packing` so many times `max_length` tokens."""
    packing: Seldom[bool] = False
    """Fill each optimizer step with tokens: rows are put together up to `max_length` tokens. Rows never see each other
    either way, and no padding is computed."""
    learning_rate: Seldom[float] = Field(0.0, ge=0)
    """Highest rate of the optimizer; 0 takes 2e-5, and 2e-3 for the tiny base model, whose rate rises in a tenth of the
    steps and falls as a cosine. The optimizer is that of `[train]`."""
    warmup_steps: Seldom[int] = Field(0, ge=0)
    """Steps in which the rate rises from near 0."""
    lr_schedule: Seldom[Literal["constant", "linear", "cosine"]] = "linear"
    """What the rate does after the warm-up; the last two take it to near 0 by the last step."""
    shuffle: Seldom[bool] = True
    """Take the rows of each epoch in an order of its own. False keeps their order."""
    seed: Seldom[int] = Field(0, ge=0)
    """The seed of that order, and of a new adapter."""
    heldout_rows: Seldom[int] = Field(100, ge=0)
    """Rows of `data.heldout`, the first ones, on which the loss is measured before, every `checkpoint_every` steps and
    after; 0 for none."""
    checkpoint_every: Seldom[int] = Field(50, ge=0)
    """Steps between checkpoints, and the most that an interruption costs; 0 keeps only the last."""
    hidden_size: Seldom[int] = Field(128, ge=HEAD_SIZE, multiple_of=HEAD_SIZE)
    """Width of the tiny base model; it has an attention head for each 32 of it."""
    num_layers: Seldom[int] = Field(4, ge=1)
    """Layers of the tiny base model."""
    episodes: int = Field(4000, ge=1)
    """Scripted episodes to imitate."""
    oracle_fraction: Seldom[float] = Field(0.35, ge=0, le=1)
    """Share of episodes played by the scripted expert; the rest are random, so that there is something to learn. A
    model of yours imitates the expert alone."""
    oracle_first: Seldom[float] = Field(0.0, ge=0, le=1)
    """Share of the optimizer steps, the first ones, that imitate the expert's episodes alone. Tiny models hardly learn
    to look something up, or to copy it, while most episodes are random; what they have learned before, they keep."""
    observation_weight: Seldom[float] = Field(0.0, ge=0)
    """Weight of a token that the agent reads, where one that it writes has 1. A tiny model learns to copy sooner where
    it also predicts documents in which names recur."""
    concurrency: Seldom[int] = Field(1, ge=1)
    """Episodes played at once; more are faster where sessions wait for a sandbox."""

    @model_validator(mode="after")
    def _experts(self) -> SftConfig:
        if self.oracle_first and not self.oracle_fraction:
            raise ValueError(
                "oracle_first: must be 0 for oracle_fraction=0, which has no episodes of the expert"
            )
        return self

    @model_validator(mode="after")
    def _pairs(self) -> SftConfig:
        """Refuse what says nothing of pairs."""
        if self.objective == "likelihood":
            return self
        columns = "column label" if self.objective == "kto" else "columns chosen and rejected"
        others = {
            "packing": self.packing,
            "completion": bool(self.completion) and self.objective != "kto",
            "min_reward": self.min_reward is not None,
            "data": self.data == SCRIPTED,
        }
        for key, given in others.items():
            if given:
                raise ValueError(
                    f"{key}: must be left out for objective={self.objective!r}, whose rows have the {columns}, got "
                    f"{getattr(self, key)!r}"
                )
        return self

    @property
    def num_heads(self) -> int:
        """Attention heads of the tiny base model."""
        return self.hidden_size // HEAD_SIZE


class ExtensionsConfig(Section):
    """What other installed packages add to the run (docs/tutorial/9-extension.md)."""

    trainer_callbacks: Seldom[dict[str, dict[str, Any]]] = Field(default_factory=dict)
    """Callbacks of the trainer by the name of their entry point, in the order in which they are called, each with its
    settings."""


class PolicyConfig(Section):
    """A further policy: the agents it plays, and where its training differs from the main policy's."""

    agents: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Names the environment gives them, without what follows a "/"."""
    model: dict[str, Any] = Field(default_factory=dict)
    """As the other sections: keys of the recipe's section of this name, and their values for this policy."""
    engine: Seldom[dict[str, Any]] = Field(default_factory=dict)
    """See `model`. Given, the policy has engines of its own."""
    buffer: Seldom[dict[str, Any]] = Field(default_factory=dict)
    """See `model`."""
    algo: dict[str, Any] = Field(default_factory=dict)
    """The whole objective, unlike the other sections."""
    train: dict[str, Any] = Field(default_factory=dict)
    """See `model`."""
    lora: dict[str, Any] = Field(default_factory=dict)
    """See `model`."""
    reference: Seldom[dict[str, Any]] = Field(default_factory=dict)
    """See `model`."""

    @property
    def needs_agents(self) -> bool:
        """Whether it must be given agents of the environment's to play."""
        return True

    @property
    def implied(self) -> Mapping[str, Mapping[str, Any]]:
        """Values of the recipe's sections that are the policy's unless its own tables say otherwise."""
        return {}

    def changes(self) -> dict[str, dict[str, Any]]:
        """Return its tables by the name of the recipe's section."""
        names = PolicyConfig.model_fields.keys() - {"agents"}
        return {name: dict(getattr(self, name)) for name in names if getattr(self, name)}
