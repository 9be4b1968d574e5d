"""The sections of a run's configuration: every setting with its type, default and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SCHEDULES: dict[str, int | None] = {
    "synchronous": 0,
    "periodic": 0,
    "one_step_off": 1,
    "asynchronous": None,
    "partial": None,
}
"""How generation and training overlap (docs/schedules.md), with the staleness bound where the name implies it."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RunConfig(Section):
    """Where the run lives and what makes it repeatable."""

    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    """Folder name under `folder`; empty means the recipe's name with a number."""
    folder: str = "runs"
    seed: int = Field(0, ge=0)
    python_path: list[str] = Field(default_factory=list)
    """Folders that import paths such as `my_env:MyEnv` are found in; the one the run was started in is added."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Seconds that a process without a model (buffer, environment service, worker) may take to start, which on a busy
    machine is mostly imports."""
    silence_timeout_s: float = Field(60.0, gt=0)
    """How long a process may give no sign of life before it is killed and started again."""


class ModelConfig(Section):
    """The policy to start from: a Hugging Face directory or hub name."""

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    tool_format: Literal["hermes", "llama", "mistral"] = "hermes"


class EnvConfig(Section):
    """The environment and where its sessions run."""

    name: str
    config: dict[str, Any] = Field(default_factory=dict)
    """Passed to the environment's constructor and task list."""
    task_file: str = ""
    """JSON lines of tasks ({"id", "seed", "data"}) instead of the environment's own list."""
    num_tasks: int = Field(0, ge=0)
    """Tasks in one epoch, 0 for as many as the run needs."""
    step_timeout_s: float = Field(30.0, gt=0)
    processes: int = Field(0, ge=0)
    """Worker processes of the environment service; 0 runs sessions inside the service."""
    max_sessions: int = Field(1024, ge=1)
    limits: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Sessions at once of single environments, by name; `max_sessions` bounds all of them together."""
    lease_s: float = Field(120.0, gt=0)
    """A session whose worker says nothing of it for so long is closed; workers renew theirs every third of it."""
    secrets: list[str] = Field(default_factory=list)
    """Environment variables with keys or tokens that the environment needs. Others (`*_API_KEY`, `*_TOKEN`, ...) are
    withheld from it and what it starts, but for those that `config` names."""


class EngineConfig(Section):
    """vLLM servers."""

    count: int = Field(1, ge=1)
    max_model_len: int = Field(2048, ge=16)
    max_num_seqs: int = Field(256, ge=1)
    kv_cache_gib: int = Field(1, ge=1)
    """KV-cache memory on CPU."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    tensor_parallel: int = Field(1, ge=1)
    weight_transfer: Literal["shared_file", "nccl", "ipc"] = "shared_file"
    threads: int = Field(0, ge=0)
    """CPU threads of each engine; 0 lets vLLM choose."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Seconds that an engine may take to load its model, compile and serve. Raise it for large models."""
    outage_timeout_s: float = Field(300.0, gt=0)
    """Seconds that requests and new weights wait for an engine while none answers, as while all are started again."""
    extra_args: list[str] = Field(default_factory=list)
    """Further `vllm serve` arguments."""


class RolloutConfig(Section):
    """Episodes."""

    workers: int = Field(1, ge=1)
    group_size: int = Field(8, ge=1)
    max_turns: int = Field(0, ge=0)
    """0 takes the environment's own limit."""
    max_tokens_per_turn: int = Field(256, ge=1)
    max_tokens: int = Field(0, ge=0)
    """Tokens of a whole trajectory; 0 takes the engine's context."""
    temperature: float = Field(1.0, gt=0)
    groups_in_flight: int = Field(0, ge=0)
    """Groups one worker runs at once; 0 takes its share of the admission bound."""
    episode_timeout_s: float = Field(600.0, gt=0)
    lease_s: float = Field(120.0, gt=0)
    branches: int = Field(0, ge=0)
    """Episodes of a group that branch off a sibling, before a turn about which the policy was uncertain."""
    hinted: int = Field(0, ge=0)
    """Episodes of a group that are given the first turns of `task.data["hint"]`."""
    hint_turns: int = Field(1, ge=1)
    """Turns they are given at most."""
    max_attempts: int = Field(3, ge=1)
    """Leases a task may lose before it is set aside as failed."""
    batch_delay_s: float = Field(0.0, ge=0, le=10)
    """Least seconds between two calls of a worker to an engine, or to an environment service; what is due meanwhile is
    sent together."""


class BufferConfig(Section):
    """Admission and staleness."""

    groups_per_step: int = Field(16, ge=1)
    max_staleness: int = Field(1, ge=0)
    drop_no_signal: bool = True
    """Drop groups whose episodes all earned the same: they carry no gradient."""
    wait_timeout_s: float = Field(600.0, gt=0)
    """How long the trainer waits for a batch before it ends the run."""
    over_provision: int | Literal["auto"] | None = None
    """Groups in flight beyond one step's, at most what the bound allows, which is the default; "auto" follows what the
    trainer waits for and what waits for it."""
    recycle: bool = True
    """Unfinished groups go on after a step; false begins them anew, which favours short ones: for comparison only."""
    token_budget: int = Field(0, ge=0)
    """Sampled tokens with which a step is complete before it has all its groups; 0 for none. Needs `over_provision`."""

    @field_validator("over_provision", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value in (None, "auto") or (type(value) is int and value >= 0):
            return value
        raise ValueError('must be a whole number from 0 on, or "auto"')


class TrainConfig(Section):
    """The optimizer and its schedule."""

    schedule: Literal["synchronous", "periodic", "one_step_off", "asynchronous", "partial"] = "partial"
    """How generation and training overlap; the first three imply `buffer.max_staleness`."""
    num_steps: int = Field(10, ge=1)
    learning_rate: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    warmup_steps: int = Field(0, ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up; the last two take it to near 0 by the last of `num_steps`."""
    max_grad_norm: float = Field(1.0, gt=0)
    num_minibatches: int = Field(1, ge=1)
    """Optimizer steps taken on each batch."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Padded tokens of one forward pass."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    ranks: int = Field(1, ge=1)
    gradient_checkpointing: bool = False
    threads: int = Field(0, ge=0)
    """CPU threads of each rank; 0 lets torch choose."""
    start_timeout_s: float = Field(300.0, gt=0)
    """Seconds that the trainer may take to load its models and, when resumed, its checkpoint."""
    checkpoint_every: int = Field(10, ge=0)
    """Steps between checkpoints, and the most that a crash of the trainer costs; 0 keeps only the last version."""
    keep_checkpoints: int = Field(2, ge=1)
    on_poison: Literal["continue", "stop"] = "continue"
    """What follows a group that makes the loss or gradient NaN, when it has been saved and left out."""

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class JudgeConfig(Section):
    """A judge or reward model that scores finished episodes; none without a `url`."""

    url: str = ""
    kind: Literal["chat", "score"] = "chat"
    """`chat`: an OpenAI-compatible server; `score`: a reward model behind one HTTP route."""
    model: str = ""
    """Model name that a chat judge is asked for."""
    prompt: str = (
        "Rate from 0 to 10 how well the assistant did its task. Reason briefly, then give the number alone on the "
        "last line.\n\nTask data: {task}\n\nConversation:\n{conversation}"
    )
    """What a chat judge reads; `{conversation}` and `{task}` are filled in."""
    scale: float = Field(10.0, gt=0)
    """A chat judge's number is divided by it."""
    mode: Literal["replace", "add"] = "replace"
    """Whether the score is the reward, or is added to the environment's."""
    weight: float = 1.0
    max_tokens: int = Field(512, ge=1)
    timeout_s: float = Field(60.0, gt=0)
    max_in_flight: int = Field(32, ge=1)


class LoraConfig(Section):
    """Low-rank adapters trained instead of all weights (arXiv 2106.09685, without dropout), see docs/lora.md."""

    rank: int = Field(0, ge=0, le=512)
    """0 trains all weights."""
    alpha: int = Field(16, ge=1)
    """The adapter's product is scaled by alpha / rank."""
    target_modules: list[str] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    """Names of the linear layers that get an adapter."""
    max_versions: int = Field(2, ge=1)
    """Versions that an engine decodes at once; requests of a further one wait."""

    @field_validator("target_modules")
    @classmethod
    def _inner_layers(cls, value: list[str]) -> list[str]:
        wrong = sorted({"lm_head", "embed_tokens"} & set(value))
        if wrong:
            raise ValueError(f"must name layers inside the transformer blocks, not {wrong[0]!r}")
        return value


class TrustConfig(Section):
    """Compares what workers sent with the trainer's own log-probabilities, see `asyncrl.train.logprob_check`."""

    max_logp_error: float = Field(0.25, ge=0)
    """Mean absolute difference of a group's compared tokens, nats, above which its worker is quarantined; 0 never."""
    max_token_error: float = Field(15.0, ge=0)
    """The same for the largest difference of any one token; 0 never."""
    sample_tokens: int = Field(2048, ge=0)
    """Tokens compared in each step."""


class CriticConfig(Section):
    """The value function of objectives that need one (`preset = "ppo"`, ...)."""

    trunk: Literal["own", "shared"] = "own"
    """A model and optimizer of its own, or a head on the policy's trunk."""
    path: str = ""
    """Model to start an own trunk from; empty takes the policy's."""
    learning_rate: float = Field(1e-5, gt=0)
    """Of an own trunk; a shared one learns at the policy's rate."""
    warmup_steps: int = Field(0, ge=0)
    """First steps in which only the critic learns."""


class ReferenceConfig(Section):
    """The reference policy of KL terms and preference pairs."""

    path: str = ""
    """Empty takes the model the run starts from."""
    url: str = ""
    """A vLLM server that serves it, instead of a copy beside the trainer; its API key in ASYNCRL_SCORER_KEY."""
    offload: bool = False
    """Keep the copy in host memory between its passes."""
    refresh_every: int = Field(0, ge=0)
    """Steps after which the copy becomes the current policy; 0 never."""


class TeacherConfig(Section):
    """The teacher of on-policy distillation."""

    path: str = ""
    url: str = ""
    """A vLLM server that serves it, instead of a copy beside the trainer; its API key in ASYNCRL_SCORER_KEY."""
    offload: bool = False


class StalenessControlConfig(Section):
    """Lowers and raises the staleness bound in force by the effective sample size, up to `buffer.max_staleness`."""

    enabled: bool = False
    minimum: int = Field(0, ge=0)
    low_ess: float = Field(0.3, ge=0, le=1)
    high_ess: float = Field(0.7, ge=0, le=1)
    patience: int = Field(5, ge=1)
    """Steps in a row below or above before the bound moves by one."""


class SftPhaseConfig(Section):
    """Supervised phases on the run's own successes between reinforcement steps."""

    every: int = Field(0, ge=0)
    """Steps between phases; 0 for none."""
    steps: int = Field(4, ge=1)
    """Optimizer steps of a phase."""
    learning_rate: float = Field(1e-5, gt=0)
    keep: int = Field(256, ge=1)
    """Successful trajectories remembered between phases, one a task."""


class EvalConfig(Section):
    """Held-out evaluation before and after training."""

    tasks: int = Field(100, ge=0)
    """0 turns evaluation off."""
    every: int = Field(0, ge=0)
    """Steps between evaluations while training goes on, each on an engine of its own; 0 for none."""
    finish_timeout_s: float = Field(300.0, gt=0)
    """Seconds that such an evaluation may still take when training has ended."""
    samples: int = Field(1, ge=1)
    temperature: float = Field(1.0, ge=0)


class SftConfig(Section):
    """The supervised warm start that `asyncrl sft` runs, and that `train` runs when `model.path` is "sft"."""

    hidden_size: int = Field(128, ge=16)
    num_layers: int = Field(4, ge=1)
    num_heads: int = Field(4, ge=1)
    vocab_size: int = Field(512, ge=300)
    episodes: int = Field(4000, ge=1)
    oracle_fraction: float = Field(0.35, ge=0, le=1)
    """Share of episodes played by the scripted expert; the rest are random, so there is something to learn."""
    concurrency: int = Field(1, ge=1)
    """Episodes played at once; those that wait for a sandbox take less time so."""
    steps: int = Field(400, ge=1)
    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(2e-3, gt=0)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _head_size(self) -> SftConfig:
        head, rest = divmod(self.hidden_size, self.num_heads)
        if rest or head % 32:
            raise ValueError(
                "sft.hidden_size / sft.num_heads must be a multiple of 32, which is what vLLM's attention takes on a "
                f"CPU, got {self.hidden_size} / {self.num_heads}"
            )
        return self


class PolicyConfig(Section):
    """A further policy: the agents it plays, and where its training differs from the main policy's."""

    agents: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Names the environment gives them, without what follows a "/"."""
    model: dict[str, Any] = Field(default_factory=dict)
    """As the other sections: keys of the recipe's section of this name, and their values for this policy."""
    engine: dict[str, Any] = Field(default_factory=dict)
    buffer: dict[str, Any] = Field(default_factory=dict)
    algo: dict[str, Any] = Field(default_factory=dict)
    """The whole objective, unlike the other sections."""
    train: dict[str, Any] = Field(default_factory=dict)
    lora: dict[str, Any] = Field(default_factory=dict)
    critic: dict[str, Any] = Field(default_factory=dict)
    reference: dict[str, Any] = Field(default_factory=dict)
