"""The DeepSpeed engine: one model and its optimizer, on 1 to N ranks and any ZeRO stage.

Other ways to train a model than by whole copies or ZeRO's shares on its device are parts of a table
(`asyncrl.train.engine.engine_parts`), as are the optimizers (`asyncrl.train.engine.optimizers`).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn
from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

from asyncrl.config import TrainConfig
from asyncrl.data.codec import pack, unpack
from asyncrl.train.engine.accumulated import MAX_GRAD_NORM, apply_gradients, forget_gradients
from asyncrl.train.engine.engine_parts import layout_of, parts_of
from asyncrl.train.engine.optimizers import attach, make_optimizer
from asyncrl.train.engine.pieces import Piece, buckets, find_pieces, whole_numel
from asyncrl.train.engine.progress import Progress
from asyncrl.train.models.checkpoint_form import VersionForm, form_of
from asyncrl.train.models.policy import NO_EXTRAS, Extras, TrunkInput, probe
from asyncrl.train.models.prefix_tree import compute_together, uses_prefix_trees
from asyncrl.train.models.token_scores import Compared

if TYPE_CHECKING:
    from asyncrl.train.engine.kept_shares import KeptShares

logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
# DeepSpeed would compile its shared-memory all-reduce for CPUs behind a lock file, which a killed process leaves
# behind: every trainer after it would wait forever. Gloo does the same work. Where the answer stands already, it does
# not run compilers to find out what else it could compile.
vars(deepspeed.ops)["__compatible_ops__"] = {"deepspeed_shm_comm": False}

GATHERED_BYTES = 256 * 2**20
"""What ZeRO-3 gathers at once: a collective for every small tensor would cost more than its bytes."""
BUCKET_SIZES = 50_000_000, 200_000_000
"""Elements of gradients that are reduced at once, in small and in large models. DeepSpeed's default of 500 million
would take 2.8 GiB of a model of 0.6 billion parameters; 200 MB keep a network busy."""
BUCKETS = 16
"""Into so many buckets gradients are divided between these sizes."""


def init_distributed(timeout_s: float | None = None) -> int:
    """Join the process group torchrun describes; alone, make a group of one. Return this process's rank.

    timeout_s: how long its collectives wait for another rank; None leaves torch's own limit.
    """
    if dist.is_initialized():
        return dist.get_rank()
    for key, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(key, value)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if os.environ["WORLD_SIZE"] == "1" and "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = "0"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if torch.cuda.is_available():
        # Before the first collective, which would take another rank's GPU.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    limit = {} if timeout_s is None else {"timeout": timedelta(seconds=timeout_s)}
    deepspeed.init_distributed(dist_backend=backend, verbose=False, **limit)
    return dist.get_rank()


def wait_for_all_ranks() -> None:
    """Return when every rank of the process group has come here."""
    if dist.get_world_size() > 1:
        dist.barrier()


def leave_distributed() -> None:
    """Leave the process group, together with all other ranks: one that ends while another still has its connections
    open may be aborted by its own communication threads. Does nothing outside a group."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def deepspeed_config(train: TrainConfig, dtype: str, num_trained: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a training section and a model of which so many parameters are trained.

    Gradients are accumulated and reduced in float32 whatever the weights: a sum of 64 micro-batches in bfloat16 is off
    by 0.8 %.
    """
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # `apply_gradients` clips those of whole copies.
        "gradient_clipping": MAX_GRAD_NORM if zero_stage(train, dtype) > 0 else 0.0,
        "zero_optimization": {
            "stage": zero_stage(train, dtype),
            "reduce_bucket_size": bucket_size(num_trained),
        },
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        # Which optimizer suits host memory is `make_optimizer`'s choice.
        "zero_force_ds_cpu_optimizer": False,
    }
    for part in parts_of(train):
        for section, values in part.settings().items():
            settings[section] = settings.get(section, {}) | values
    return settings


def bucket_size(num_trained: int) -> int:
    """Return how many elements of gradients are reduced at once."""
    smallest, largest = BUCKET_SIZES
    # DeepSpeed allocates the whole bucket, even where few parameters are trained.
    return max(1, min(num_trained, largest, max(smallest, num_trained // BUCKETS)))


@contextmanager
def divided_loading(train: TrainConfig, dtype: str) -> Iterator[None]:
    """Have models that are loaded while it is open divided over the ranks, under ZeRO stage 3.

    transformers then makes each module divided and fills it from the files one by one, so that no GPU ever holds the
    model; it reads the files into each rank's host memory. Such a model computes only once a DeepSpeed engine has it.
    Call on every rank, which all load the same.
    """
    if zero_stage(train, dtype) != 3:
        yield
        return
    init_distributed()
    settings = HfDeepSpeedConfig(deepspeed_config(train, dtype, BUCKET_SIZES[0]))
    try:
        yield
    finally:
        del settings
        unset_hf_deepspeed_config()


def engine_for_reading(policy: nn.Module, train: TrainConfig, dtype: str) -> Any:
    """Return a DeepSpeed engine that computes a divided model (`divided_loading`) and trains nothing. A collective."""
    settings = deepspeed_config(train, dtype, 1)
    engine, *_ = deepspeed.initialize(model=policy.requires_grad_(False), config=settings)
    probe(policy)
    engine.eval()
    return engine


def gather_buckets(
    parameters: Iterable[tuple[str, nn.Parameter]],
) -> Iterator[list[tuple[str, nn.Parameter]]]:
    """Divide parameters of ZeRO-3 into consecutive lists of up to `GATHERED_BYTES`, or of one that is larger."""
    return buckets(parameters, lambda one: whole_numel(one[1]) * one[1].element_size(), GATHERED_BYTES)


def zero_stage(train: TrainConfig, dtype: str) -> int:
    """Return the ZeRO stage in use: bfloat16 weights have float32 gradients and masters from DeepSpeed's stage 1 on."""
    return max(1, train.zero_stage) if dtype == "bfloat16" else train.zero_stage


class TrainEngine:
    """A DeepSpeed engine with the few verbs training needs."""

    def __init__(self, policy: nn.Module, train: TrainConfig, dtype: str) -> None:
        self.stage = zero_stage(train, dtype)
        self.dtype = dtype
        self.rank, self.num_ranks = self._join()
        self.parts = parts_of(train)
        # A part of an earlier engine of the process may have had ranks compute rows together.
        compute_together(None)
        for part in self.parts:
            part.joined(policy)
        self.ranks_of_share = math.prod(part.ranks for part in self.parts)
        """How many consecutive ranks compute the same rows together."""
        self.engine = self._initialize(policy, train)
        self.device = self.engine.device
        self.progress = Progress()
        self._probe = torch.zeros((), device=self.device)
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._note_gradient)

    def _join(self) -> tuple[int, int]:
        """Join the process group; return this rank and the number of ranks."""
        init_distributed()
        return dist.get_rank(), dist.get_world_size()

    def _initialize(self, policy: nn.Module, train: TrainConfig) -> Any:
        trained = [p for p in policy.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(train, policy.named_parameters())
        engine, *_ = deepspeed.initialize(
            model=policy,
            model_parameters=trained,
            optimizer=self.optimizer,
            config=deepspeed_config(train, self.dtype, sum(map(whole_numel, trained))),
        )
        for part in self.parts:
            part.initialized(engine)
        self.layout = layout_of(self.parts, engine.module)
        probe(policy)
        attach(self.optimizer, lambda: self.pieces, self.divided, engine.device)
        for part in self.parts:
            part.made(engine, self.optimizer)
        return engine

    @property
    def divided(self) -> bool:
        """True where the ranks keep different pieces of the optimizer's state."""
        return self.stage > 0 and self.num_ranks > 1

    @cached_property
    def pieces(self) -> list[Piece]:
        """What this rank's optimizer keeps of each trained parameter; a part of one is a parameter to it."""
        found = find_pieces(self.engine.module, self.engine.optimizer, self.stage, self.rank)
        return [replace(piece, shard=self.layout.part(piece.parameter)) for piece in found]

    @property
    def ranks_of_pieces(self) -> Any:
        """The ranks whose pieces make up what this rank has a piece of: None for all."""
        return self.layout.ranks_of_pieces(self.engine.optimizer)

    def _note_gradient(self, grad: Tensor) -> None:
        # One NaN or infinity anywhere makes the sum one too, as does a norm beyond what float32 can square.
        self._probe += torch.linalg.vector_norm(grad.detach(), dtype=torch.float32).square()

    def outputs(
        self,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...] = (),
        compared: Compared | None = None,
        extras: Extras = NO_EXTRAS,
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does, of the current weights. A collective under ZeRO-3."""
        self.progress.mark()
        return self.engine(
            token_ids.to(self.device), mask.to(self.device), temperature, want, compared, extras
        )

    def logp(self, token_ids: Tensor, mask: Tensor, temperature: float, extras: Extras = NO_EXTRAS) -> Tensor:
        """Return the log-probabilities [B,T] alone."""
        return self.outputs(token_ids, mask, temperature, extras=extras)["logp"]

    def backward(self, loss: Tensor, last: bool) -> None:
        """Accumulate the gradient of this rank's share of the loss; `last` marks the step's last micro-batch.

        DeepSpeed averages gradients over ranks, but for those that have parts of a layer, while losses are shares of
        one global sum: the factor puts the sum back.
        """
        self.progress.mark()
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * (self.num_ranks // self.layout.ranks))

    def finite(self) -> bool:
        """True when every gradient since the last step is finite, on all ranks. A collective."""
        bad = (~torch.isfinite(self._probe)).float()
        self.all_reduce(bad, "max")
        return not bool(bad)

    def discard(self) -> None:
        """Forget the accumulated gradient; weights and moments stay. Call on every rank."""
        self._probe.zero_()
        forget_gradients(self.engine, self.stage)

    def step(self, learning_rate: float, divide_by: float = 1.0) -> float:
        """Apply the accumulated gradient, divided by `divide_by`; return its norm before clipping."""
        self.progress.mark()
        self._probe.zero_()
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        return apply_gradients(self.engine, self.stage, divide_by)

    @property
    def num_shares(self) -> int:
        """How many parts a batch is dealt into: one for each rank, or for those that compute rows together."""
        return self.num_ranks // self.ranks_of_share

    @property
    def share(self) -> int:
        """Which of the parts is this rank's."""
        return self.share_of(self.rank)

    def share_of(self, rank: int) -> int:
        """Return which part of a batch a rank computes."""
        return rank // self.ranks_of_share

    def sum_shares(self, tensor: Tensor, kind: str = "sum") -> None:
        """Reduce in place what each part of a batch gives, the same on all ranks that compute it. A collective."""
        self.all_reduce(tensor, kind)
        if kind == "sum":
            tensor /= self.ranks_of_share

    def all_reduce(self, tensor: Tensor, kind: str = "sum") -> None:
        """Reduce in place over ranks by "sum", "max" or "min"."""
        self.progress.mark()
        if self.num_ranks > 1:
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, kind.upper()))

    def any_text(self, text: str) -> str:
        """Return the text of one rank that has one, the same on every rank; "" when none has. A collective."""
        source_plus_one = torch.tensor([self.rank + 1 if text else 0], device=self.device)
        self.all_reduce(source_plus_one, "max")
        source = int(source_plus_one) - 1
        return "" if source < 0 else self.broadcast_bytes(text.encode(), source).decode()

    def broadcast_bytes(self, data: bytes | None, source: int = 0) -> bytes:
        """Send one rank's bytes to every rank."""
        self.progress.mark()
        if self.num_ranks == 1:
            assert data is not None
            return data
        size = torch.tensor([len(data) if data is not None else 0], dtype=torch.long, device=self.device)
        dist.broadcast(size, src=source)
        if self.rank == source:
            buffer = torch.frombuffer(bytearray(data or b""), dtype=torch.uint8).to(self.device)
        else:
            buffer = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(buffer, src=source)
        return buffer.cpu().numpy().tobytes()

    def broadcast(self, message: Any, source: int = 0) -> Any:
        """Send one rank's plain data (what msgpack carries) to every rank; with one rank nothing is copied."""
        self.progress.mark()
        if self.num_ranks == 1:
            return message
        body = self.broadcast_bytes(pack(message) if self.rank == source else None, source)
        return unpack(body)

    def on_first(self, work: Callable[[], Any]) -> Any:
        """Return on every rank what `work`, run on the first, returns: plain data. A collective.

        What it raises there is raised on the first rank, and as `RuntimeError` on the others.
        """
        if self.num_ranks == 1:
            return work()
        reply: dict[str, Any] = {}
        if self.rank == 0:
            try:
                reply = {"found": work()}
            except Exception as error:
                self.broadcast({"problem": f"{type(error).__name__}: {error}"})
                raise
        reply = self.broadcast(reply)
        if "problem" in reply:
            raise RuntimeError(f"on the first rank: {reply['problem']}")
        return reply["found"]

    def gather_lists(self, mine: list[int]) -> list[list[int]]:
        """Return the list of every rank, on every rank. A collective."""
        return [self.broadcast(mine if rank == self.rank else None, rank) for rank in range(self.num_ranks)]

    def send(self, message: Any, rank: int) -> None:
        """Send plain data (what msgpack carries) to one rank, which calls `receive`."""
        body = torch.frombuffer(bytearray(pack(message)), dtype=torch.uint8).to(self.device)
        self.progress.mark()
        dist.send(torch.tensor([len(body)], device=self.device), rank)
        dist.send(body, rank)

    def receive(self, source: int) -> Any:
        """Return what one rank `send`s."""
        self.progress.mark()
        size = torch.zeros(1, dtype=torch.long, device=self.device)
        dist.recv(size, source)
        body = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.recv(body, source)
        return unpack(body.cpu().numpy().tobytes())

    def send_values(self, values: Tensor, rank: int) -> None:
        """Send float32 numbers [N] to one rank, which calls `receive_values` with N."""
        self.progress.mark()
        if len(values):
            dist.send(values.to(self.device, torch.float32).contiguous(), rank)

    def receive_values(self, size: int, source: int) -> Tensor:
        """Return on the host the `size` numbers that one rank sends."""
        self.progress.mark()
        values = torch.empty(size, device=self.device)
        if size:
            dist.recv(values, source)
        return values.cpu()

    def barrier(self) -> None:
        self.progress.mark()
        if self.num_ranks > 1:
            dist.barrier()

    @property
    def shares_prefixes(self) -> bool:
        """True when the model computes prefixes that rows of a micro-batch share only once."""
        return uses_prefix_trees(self.engine.module.model)

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states."""
        return int(self.engine.module.model.config.get_text_config().hidden_size)

    @property
    def states_dtype(self) -> str:
        """The type that hidden states have: "float32" or "bfloat16"."""
        return str(self.engine.module.model.dtype).removeprefix("torch.")

    @property
    def trunk_inputs(self) -> tuple[TrunkInput, ...]:
        """What the model's layers read besides the tokens."""
        return getattr(self.engine.module, "inputs", ())

    @property
    def form(self) -> VersionForm:
        """What a version consists of."""
        return form_of(self.engine.module.model)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield `(name, tensor)` of what a version consists of. Call on every rank.

        Under ZeRO-3 parameters are gathered in buckets, so no rank holds more than a bucket, or one larger tensor,
        beside its share.
        """
        if self.stage != 3:
            for name, parameter in self._published():
                self.progress.mark()
                yield name, self.layout.whole(parameter, parameter.detach())
            return
        for bucket in gather_buckets(self._published()):
            self.progress.mark()
            with self._gathered([parameter for _, parameter in bucket]):
                whole = [(name, parameter.detach().clone()) for name, parameter in bucket]
            yield from whole

    def checkpoint(self) -> Iterator[tuple[str, Tensor]]:
        """Yield `(name, tensor)` of what a version consists of as its checkpoint has it. Call on every rank."""
        return self.form.checkpoint(self.engine.module.model, self.weights())

    def master_weights(self) -> Iterator[Tensor]:
        """Yield what `weights` does in float32, as the optimizer keeps it: bfloat16 loses small steps. A collective."""
        if self.dtype == "float32":
            yield from (tensor for _, tensor in self.weights())
            return
        for _, parameter in self._published():
            yield self.layout.whole(parameter, safe_get_full_fp32_param(parameter))

    def whole_model(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the whole model where a version consists of a part of it, nothing elsewhere. Call on every rank."""
        return self.form.whole_model(self.engine.module.model, self._gathered)

    def _published(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.form.parameters(self.engine.module.model)

    def whole_shape(self, parameter: nn.Parameter) -> Tensor:
        """Return a tensor without content in the shape that a parameter has when it is whole."""
        return torch.empty(self.layout.whole_shape(parameter), device="meta")

    @contextmanager
    def other_weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the model of ZeRO-3 have other weights while it is open. A collective; the first rank's `weights` count.

        The first rank keeps the trained weights in host memory, and they come back unchanged; the optimizer's own copy
        is not touched.
        """
        kept = self._exchange(weights)
        try:
            yield
        finally:
            self._exchange(kept)

    @torch.no_grad()
    def _exchange(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Put `weights` into the model; return, on the first rank, what it had."""
        kept: dict[str, Tensor] = {}
        for bucket in gather_buckets(self._published()):
            self.progress.mark()
            parameters = [parameter for _, parameter in bucket]
            with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
                for name, parameter in bucket if self.rank == 0 else ():
                    kept[name] = parameter.detach().to("cpu", copy=True)
                    parameter.data.copy_(weights[name])
        return kept

    @torch.no_grad()
    def follow_optimizer(self) -> None:
        """Make the model's weights those that the optimizer keeps. A collective."""
        optimizer = self.engine.optimizer
        if self.stage in (1, 2):
            optimizer.update_lp_params()
        if self.stage != 3:
            return
        for piece in self.pieces:
            divided: Any = piece.parameter
            divided.ds_tensor.data.view(-1)[: piece.numel].copy_(piece.of(piece.flat))
        self._whole_again()

    def _whole_again(self) -> None:
        """Make the small parameters of ZeRO-3, which stay whole on every rank, what their shares are. A collective."""
        small = self.engine.optimizer.persistent_parameters
        if small:
            small[0].partition(small)
            small[0].all_gather(small)

    @cached_property
    def kept_shares(self) -> KeptShares:
        """This rank's share of the version before, under ZeRO-3."""
        from asyncrl.train.engine.kept_shares import KeptShares

        return KeptShares(self._published, self._whole_again, self.progress.mark)

    def _gathered(self, parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
        """Make parameters whole while it is open."""
        if self.stage == 3:
            return deepspeed.zero.GatheredParameters(parameters)
        return nullcontext()
