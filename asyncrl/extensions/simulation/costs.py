"""How long work takes: numbers that a hardware model (`hardware`) or a run (`calibrate`) gives."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """One engine with continuous batching: every running sequence gets a token each iteration."""

    iteration_s: float
    """Fixed part of an iteration: launching kernels, and all that is not told apart from it."""
    sequence_s: float = 0.0
    """Added for each running sequence."""
    weights_s: float = 0.0
    """Reading the weights, during which the products of few sequences are computed."""
    product_s: float = 0.0
    """The products of one sequence. An iteration takes the larger of both."""
    experts_s: float = 0.0
    """Of `weights_s`, what reading the experts takes when the sequences of an iteration use all of them."""
    expert_share: float = 1.0
    """Share of a layer's experts that one token uses."""
    context_token_s: float = 0.0
    """Added for each token of context in the cache that an iteration reads."""
    prefill_token_s: float = 0.0
    """For each token of context that is not in the prefix cache."""
    max_num_seqs: int = 256
    kv_tokens: int = 2**31
    """Tokens that the KV cache holds."""
    block_tokens: int = 1
    """Tokens of a block of the KV cache. The prefix cache has whole blocks only."""

    def iteration(self, sequences: int, context_tokens: float) -> float:
        """Return the seconds of one iteration."""
        unused = self.experts_s * (1 - self.expert_share) ** sequences
        products = max(self.weights_s - unused, sequences * self.product_s)
        return (
            self.iteration_s + products + sequences * self.sequence_s + context_tokens * self.context_token_s
        )


@dataclass(frozen=True, slots=True)
class TrainerCosts:
    """The trainer as a whole, all its ranks together."""

    token_s: float
    """For each token of the batch that it computes, context included: all passes over it."""
    step_s: float = 0.0
    """Fixed part of a step, with its optimizer steps."""
    publish_s: float = 0.0
    """Writing or sending a version, during which the trainer does nothing else."""
    swap_s: float = 0.0
    """How long an engine pauses to take a version over."""


@dataclass(frozen=True, slots=True)
class SharedCores:
    """A machine on which engines and trainer share processor cores; the trainer goes first."""

    cores: float = 0.0
    """0: nothing is shared."""
    trainer: float = 0.0
    """Cores that the trainer uses while it computes."""
    generation: float = 1.0
    """Cores that engines, workers and environments use together while they generate."""

    def generation_speed(self, trainer_busy: bool) -> float:
        """Return the speed of generation, as a share of what it is alone on the machine."""
        if not self.cores or not trainer_busy:
            return 1.0
        return max(0.05, min(1.0, (self.cores - self.trainer) / self.generation))


@dataclass(frozen=True, slots=True)
class Costs:
    """All costs of a cluster."""

    engine: EngineCosts
    trainer: TrainerCosts
    shared: SharedCores = field(default_factory=SharedCores)
    by_turns: bool = False
    """Whether engines and trainer use the same GPUs by turns."""
    turn_s: float = 0.0
    """Seconds that a change of turns takes: sleeping, waking, moving states."""
