"""The decoder that all families share, with Hugging Face's parameter names and shapes.

Every parameter is read only inside the forward of the module that owns it. Sharded training (FSDP2, ZeRO-3)
gathers a weight around exactly that call, so one model runs under every strategy. For the same reason a tied
embedding computes logits and loss itself.

The embedding gives its vectors in the dtype to compute in; every module after it computes in the dtype of
what it is given, with its parameters cast to it. Under FSDP2 and ZeRO they come in that dtype; under ddp they
are fp32, and are cast inside the module, so that a block that is computed again casts them again. Autocast is
not used: it picks a dtype per operation.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jobs.training.models.attention import (
    Mask,
    attend,
    block_mask,
    prepare_to_attend_apart,
    takes_begins,
    takes_groups,
)
from jobs.training.models.checkpointing import checkpointed
from jobs.training.models.compiling import compiled
from jobs.training.models.first_calls import call_each_once
from jobs.training.models.fp8 import linear_product
from jobs.training.models.head import chunked_cross_entropy, whole_cross_entropy
from jobs.training.models.marking import mark_backward, mark_forward
from jobs.training.task.job import mask_row
from jobs.training.task.presets import ModelConfig, RopeScaling
from jobs.training.task.settings import Attention as AttentionKernel
from jobs.training.task.settings import CrossEntropy, Fp8, Settings

Rotation = tuple[Tensor, Tensor]
USUAL = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """What attention needs for one length. ``mask`` is None if plain causal attention is enough.

    ``mask`` and ``grouped``: see ``attention.attend``.
    """

    length: int
    device: torch.device
    dtype: torch.dtype
    rotation: Rotation
    mask: Mask
    grouped: bool


class Decoder(nn.Module):
    """A causal language model. May be built under ``torch.device("meta")``.

    Only the parameters are state. Position tables and masks are computed at the first forward of each length,
    on the device of the tokens, and are not in ``state_dict``. ``compute_dtype`` None leaves the dtype to the
    parameters.
    """

    def __init__(
        self, config: ModelConfig, settings: Settings = USUAL, compute_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config, settings, compute_dtype)
        if not config.tied_embeddings:
            self.lm_head = Head(config.hidden_size, config.vocab_size, bias=False)
        self._cross_entropy = settings.cross_entropy

    def forward(self, ids: Tensor, labels: Tensor | None = None, begins: Tensor | None = None) -> Tensor:
        """The logits of ``ids`` (batch, length), or with ``labels`` their mean cross-entropy in fp32.

        ``labels`` are already shifted: ``labels[b, i]`` is the token that should follow ``ids[b, i]``. A
        negative one counts as a loss of 0. With ``begins`` a row is several samples, and is true at the first
        token of each: no token attends to another sample's, and positions begin anew.
        """
        hidden = self.model(ids, begins)
        if self.config.tied_embeddings:
            out: Tensor = self.model.embed_tokens(hidden, labels, head=self._cross_entropy)
        else:
            out = self.lm_head(hidden, labels, self._cross_entropy)
        mark_forward()
        return out


class Trunk(nn.Module):
    """The decoder without its output head: turns tokens into normalised hidden states."""

    def __init__(self, config: ModelConfig, settings: Settings, compute_dtype: torch.dtype | None) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.embed_tokens.computes_in = compute_dtype
        self.layers = nn.ModuleList(Block(config, settings) for _ in range(config.num_layers))
        self.norm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.config = config
        self._kernel = settings.attention
        self.positions: Positions | None = None

    def forward(self, ids: Tensor, begins: Tensor | None = None) -> Tensor:
        hidden = self.embed_tokens(ids)
        mark_backward(hidden)
        positions = self._positions_of(hidden)
        if begins is not None:
            positions = within_samples(self.config, positions, begins, self._kernel)
        for block in self.layers:
            hidden = block(hidden, positions.rotation, positions.mask, positions.grouped)
        normed: Tensor = self.norm(hidden)
        return normed

    def _positions_of(self, hidden: Tensor) -> Positions:
        """The positions for this length, device and dtype. Only the latest are kept."""
        wanted = (hidden.shape[1], hidden.device, hidden.dtype)
        kept = self.positions
        if kept is None or (kept.length, kept.device, kept.dtype) != wanted:
            kept = self.positions = positions_of(self.config, *wanted, self._kernel)
        return kept


class Linear(nn.Linear):
    def __init__(self, in_features: int, out_features: int, *, bias: bool, fp8: Fp8) -> None:
        super().__init__(in_features, out_features, bias)
        self._product = linear_product(fp8)

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return self._product(input, self.weight.to(input.dtype), bias)


class Norm(nn.RMSNorm):
    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight.to(input.dtype), self.eps)


class Head(nn.Linear):
    """Turns vectors into logits, or with labels into the loss, inside its own forward."""

    def forward(self, input: Tensor, labels: Tensor | None = None, how: CrossEntropy = "whole") -> Tensor:
        return logits_or_loss(input, self.weight, labels, how)


class Embedding(nn.Embedding):
    """Turns tokens into vectors and, in tied models with ``head``, vectors as ``Head`` does."""

    computes_in: torch.dtype | None = None

    def forward(
        self, input: Tensor, labels: Tensor | None = None, *, head: CrossEntropy | None = None
    ) -> Tensor:
        if head is not None:
            return logits_or_loss(input, self.weight, labels, head)
        vectors = F.embedding(input, self.weight)
        return vectors if self.computes_in is None else vectors.to(self.computes_in)


def logits_or_loss(hidden: Tensor, weight: Tensor, labels: Tensor | None, how: CrossEntropy) -> Tensor:
    weight = weight.to(hidden.dtype)
    if labels is None:
        return F.linear(hidden, weight)
    return (chunked_cross_entropy if how == "chunked" else whole_cross_entropy)(hidden, weight, labels)


class Block(nn.Module):
    """One decoder block: attention, then MLP. Each has a norm before it and is added to its input."""

    def __init__(self, config: ModelConfig, settings: Settings) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, settings.attention, settings.fp8)
        self.post_attention_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMlp(config, settings.fp8)
        self._checkpointing = settings.activation_checkpointing
        self._compiling = settings.compile

    def forward(self, hidden: Tensor, rotation: Rotation, mask: Mask, grouped: bool) -> Tensor:
        # Computing again and compiling are inside the block, where its parameters are gathered.
        run = compiled(Block._run) if self._compiling == "block" else Block._run
        out: Tensor = run(self, hidden, *rotation, mask, grouped)
        return out

    def _run(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Mask, grouped: bool) -> Tensor:
        return checkpointed(self._checkpointing, self._attention_and_mlp, hidden, cos, sin, mask, grouped)

    def _attention_and_mlp(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Mask, grouped: bool
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(hidden), (cos, sin), mask, grouped)
        hidden = hidden + attended
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Attention(nn.Module):
    """Causal self-attention in which several query heads share one key and value head."""

    def __init__(self, config: ModelConfig, kernel: AttentionKernel, fp8: Fp8) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self._kernel = kernel
        self.q_proj = Linear(config.hidden_size, config.attention_size, bias=config.qkv_bias, fp8=fp8)
        self.k_proj = Linear(config.hidden_size, config.kv_size, bias=config.qkv_bias, fp8=fp8)
        self.v_proj = Linear(config.hidden_size, config.kv_size, bias=config.qkv_bias, fp8=fp8)
        self.o_proj = Linear(config.attention_size, config.hidden_size, bias=False, fp8=fp8)
        if config.qk_norm:
            self.q_norm = Norm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = Norm(config.head_dim, eps=config.rms_norm_eps)
        self._has_norms = config.qk_norm

    def forward(self, hidden: Tensor, rotation: Rotation, mask: Mask, grouped: bool) -> Tensor:
        q, k, v = (self._heads(project(hidden)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self._has_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, rotation), rotate(k, rotation)
        mixed = attend(q, k, v, mask, self._kernel, grouped)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, projected: Tensor) -> Tensor:
        """Reshapes (batch, length, heads * head_dim) to (batch, heads, length, head_dim)."""
        batch, length, _ = projected.shape
        return projected.view(batch, length, -1, self.head_dim).transpose(1, 2)


class GatedMlp(nn.Module):
    """A SwiGLU MLP."""

    def __init__(self, config: ModelConfig, fp8: Fp8) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False, fp8=fp8)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False, fp8=fp8)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False, fp8=fp8)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """RoPE as Hugging Face's checkpoints expect it: dimension i turns with i + head_dim / 2."""
    cos, sin = rotation
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def positions_of(
    config: ModelConfig,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
    kernel: AttentionKernel = "auto",
) -> Positions:
    """Rotation and mask for one length. Angles are fp32 even in bf16 models: bf16 would merge positions."""
    cos, sin = rotation(config, length, device)
    mask: Mask
    if kernel == "flex":
        mask, grouped = block_mask(length, device, window_of(config, length)), True
    else:
        mask = window_mask(config, length, device, dtype)
        grouped = takes_groups(config, device, dtype, mask)
    return Positions(
        length=length,
        device=device,
        dtype=dtype,
        # Cast here for every strategy alike: else FSDP's mixed precision would cast and the others would not.
        rotation=(cos.to(dtype), sin.to(dtype)),
        mask=mask,
        grouped=grouped,
    )


def within_samples(
    config: ModelConfig, plain: Positions, begins: Tensor, kernel: AttentionKernel = "auto"
) -> Positions:
    """The positions of rows of several samples, from the ``plain`` ones of a row that is one sample."""
    places = torch.arange(plain.length, device=plain.device).expand_as(begins)
    first = torch.where(begins, places, 0).cummax(dim=1).values
    own = places - first
    cos, sin = (table[own].unsqueeze(1) for table in plain.rotation)
    if kernel == "flex":
        blocks = block_mask(plain.length, plain.device, window_of(config, plain.length), first)
        return replace(plain, rotation=(cos, sin), mask=blocks)
    assert plain.mask is None or isinstance(plain.mask, Tensor)
    if takes_begins(kernel, plain.device, plain.mask):
        prepare_to_attend_apart()
        # How many there are is the one thing that the host waits for, once for all layers.
        begins_of_all = (own == 0).flatten().nonzero().flatten().to(torch.int32)
        return replace(plain, rotation=(cos, sin), mask=F.pad(begins_of_all, (0, 1), value=own.numel()))
    # A token of the same sample has the same first token; a later one is seen by none.
    seen = (first[:, :, None] == first[:, None, :]) & (places[:, :, None] >= places[:, None, :])
    mask = mask_of(seen, plain.dtype)
    if plain.mask is not None:
        mask += plain.mask
    mask = mask.unsqueeze(1)
    grouped = takes_groups(config, plain.device, plain.dtype, mask[0, 0])
    return replace(plain, rotation=(cos, sin), mask=mask, grouped=grouped)


def rotation(config: ModelConfig, length: int, device: torch.device) -> Rotation:
    """Cosines and sines in fp32, each (length, head_dim)."""
    call_each_once()
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        frequencies = scale(frequencies, config.rope_scaling)
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's scaling: divides low frequencies by ``factor``, keeps high ones, blends those between."""
    turns = scaling.original_max_seq_len * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * frequencies / scaling.factor


def window_mask(config: ModelConfig, length: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """The mask of a sliding window: 0 for a token itself and the ``sliding_window - 1`` before it, else -inf.
    None if the window is no shorter than the sequence.
    """
    window = window_of(config, length)
    if window is None:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril_().triu_(1 - window)
    return mask_of(seen, dtype)


def window_of(config: ModelConfig, length: int) -> int | None:
    """The sliding window, if it is shorter than the sequence."""
    window = config.sliding_window
    return window if window is not None and window < length else None


def mask_of(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``seen``, else -inf. It is not boolean, and its rows lie ``mask_row`` numbers apart: of any
    other mask every layer would make one like this, and keep its copy for the backward pass.
    """
    length = seen.shape[-1]
    room = torch.zeros(*seen.shape[:-1], mask_row(length), dtype=dtype, device=seen.device)
    return room[..., :length].masked_fill_(~seen, -math.inf)
