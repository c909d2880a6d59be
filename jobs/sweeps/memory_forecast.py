"""Predicts the peak memory of one training rank, from theory. Needs no torch.

A step can peak at four moments. The largest is predicted:

- as its last backward pass starts, when all activations are alive;
- as that pass reaches the first block, whose activations are alive, and nearly all gradients;
- as that pass ends, when all gradients are alive;
- as the optimizer updates the parameters.

With fp8 it can also peak as a block casts to it, see ``_casting``.
"""

from dataclasses import astuple, dataclass, replace
from typing import assert_never

from jobs.training.task.job import Recipe, mask_row, tokens_per_chunk
from jobs.training.task.presets import ModelConfig

_FP32 = 4
_FP8 = 1
# The bytes of a value while torchao casts it: twice in fp32, and in fp8.
_CAST = 2 * _FP32 + _FP8
_COMPUTE = {"fp32": 4, "bf16": 2}

# ``strategies.zero`` sets DeepSpeed's defaults and shrinks them in proportion for smaller models.
_ZERO_USUAL_PARAMETERS = 8e9
_ZERO_REDUCE_BUCKET = 5e8
_ZERO_MAX_LIVE = 1e9

# glibc's heap keeps freed pieces below the size that ``host_memory.return_large_pieces`` sets, and torch asks
# for aligned memory, so a freed piece can't serve again for one of its size. Measured with glibc 2.36: the
# heap holds a tenth more than is live, and this many times the weights in small pieces. DeepSpeed frees each
# weight when it lays it out anew; gathered weights are freed in each pass. Without the logits of all tokens,
# several moments of a step take about as much, and what one has freed does not fit the others.
_HEAP_SLACK = {"whole": 0.1, "chunked": 0.15}
_SMALL_PIECE_BYTES = 4 * 2**20
_FREED_WEIGHTS = {"ddp": 0.2, "fsdp": 1.5, "zero1": 1.5, "zero2": 1.5, "zero3": 3.2}
# Under zero3, what selective checkpointing keeps takes some of the pieces that gathered weights have freed.
_FREED_WEIGHTS_SELECTIVE_ZERO3 = 2.4
# What a fresh process loads and touches of its libraries; the second number is that under DeepSpeed.
_HOST_FIXED_BYTES = 70_000_000
_HOST_FIXED_DEEPSPEED_BYTES = 60_000_000
# What a process on a CPU takes besides, once it has compiled blocks: libraries, and as much again as the
# training holds, up to the second number. Pieces that the compiler has freed serve the training, so it takes
# no more until what is above is larger. The C++ compiler is a process of its own and counts for no rank.
_HOST_COMPILED_BYTES = 195_000_000
_HOST_COMPILED_SLACK_BYTES = 50_000_000
# What importing torchao adds to a process.
_HOST_TORCHAO_BYTES = 53_000_000
# Memory that the caching allocator loses to pieces that no later request fits.
_DEVICE_SLACK = 0.05
# Memory that no allocator counts, on an H200: the context with its kernels, and the buffers of collectives.
_DEVICE_FIXED_BYTES = 1_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """The memory of one rank at its peak, in bytes by kind.

    ``working`` is what a step needs besides the state: gathered weights, copies in lower precision, buckets
    of the collectives. ``overhead`` is what the allocator and the device driver take on top.
    """

    parameters: int
    masters: int
    gradients: int
    moments: int
    working: int
    activations: int
    logits: int
    overhead: int

    @property
    def total(self) -> int:
        return sum(astuple(self))


def predict_memory(recipe: Recipe, *, on_cpu: bool, in_parts: bool = False) -> MemoryPrediction:
    """Predicts a rank's peak memory: growth above an idle worker on a CPU, all used memory on a device.

    ``in_parts``: rows hold several documents or conversations, and a mask keeps these apart.
    """
    state = _state(recipe, on_cpu)
    starts = replace(
        state.as_backward_starts, activations=_activations(recipe, on_cpu, in_parts), logits=_logits(recipe)
    )
    ends = state.as_backward_ends
    reaches_first_block = replace(
        ends,
        working=ends.working - state.after_blocks,
        activations=_tokens(recipe) * _block(recipe, on_cpu, in_parts)
        + (mask_of_parts_bytes(recipe) if in_parts else 0),
    )
    moments = [starts, reaches_first_block, ends, state.as_update_runs]
    if recipe.fp8 != "none":
        moments += [_casting(starts, recipe), _casting(reaches_first_block, recipe)]
    peak = max(moments, key=lambda moment: moment.total)
    live = _prediction(state, peak)
    return replace(live, overhead=round(_overhead(recipe, live.total, on_cpu)))


def mask_of_parts_bytes(recipe: Recipe) -> int:
    """The mask that keeps a row's documents apart: one for each row, which all heads and layers share."""
    return recipe.micro_batch * _mask_bytes(recipe)


def offloaded_bytes(recipe: Recipe) -> int:
    """What a rank with a device of its own keeps of its training state in the memory of its host."""
    if recipe.offload == "none":
        return 0
    slices = _FP32 * recipe.model.num_parameters / recipe.ranks_per_copy
    # Both moments. DeepSpeed also moves masters, and two buffers of gradients.
    num_slices = 5 if recipe.strategy == "zero3" else 2
    return round(num_slices * slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """Memory that is allocated and freed within a step, in bytes."""

    gradients: float
    working: float
    activations: float = 0
    logits: float = 0

    @property
    def total(self) -> float:
        return self.gradients + self.working + self.activations + self.logits


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A rank's share of the training state under one strategy, in bytes.

    ``after_blocks`` is what of ``as_backward_ends.working`` comes after the backward pass of the blocks.
    """

    parameters: float
    masters: float
    moments: float
    after_blocks: float
    as_backward_starts: _Moment
    as_backward_ends: _Moment
    as_update_runs: _Moment


def _prediction(state: _State, moment: _Moment) -> MemoryPrediction:
    return MemoryPrediction(
        parameters=round(state.parameters),
        masters=round(state.masters),
        gradients=round(moment.gradients),
        moments=round(state.moments),
        working=round(moment.working),
        activations=round(moment.activations),
        logits=round(moment.logits),
        overhead=0,
    )


def _casting(moment: _Moment, recipe: Recipe) -> _Moment:
    """That moment without logits, as the largest product of a block casts its operands to fp8.

    Compiled, a cast is one pass over the values. The largest operands are the input of the MLP's last product
    and its weight. Nothing in fp8 is kept for later.
    """
    model, tokens = recipe.model, _tokens(recipe)
    if recipe.compile == "none":
        casts = _CAST * model.intermediate_size * max(tokens, model.hidden_size)
    else:
        casts = _FP8 * model.intermediate_size * (tokens + model.hidden_size)
    return replace(moment, logits=0, working=moment.working + casts)


def _overhead(recipe: Recipe, live_bytes: int, on_cpu: bool) -> float:
    if not on_cpu:
        return _DEVICE_FIXED_BYTES + _DEVICE_SLACK * live_bytes
    fixed = _HOST_FIXED_DEEPSPEED_BYTES if recipe.strategy.startswith("zero") else _HOST_FIXED_BYTES
    is_reused = recipe.strategy == "zero3" and recipe.activation_checkpointing == "selective"
    num_freed = _FREED_WEIGHTS_SELECTIVE_ZERO3 if is_reused else _FREED_WEIGHTS[recipe.strategy]
    # Half of what is freed has the size of the fp32 weights from which those of a pass are cast.
    freed = num_freed * _small_weights(recipe) * (1 + _FP32 / _compute(recipe)) / 2
    if recipe.fp8 != "none":
        fixed += _HOST_TORCHAO_BYTES
        # The heap keeps a block's weights as they are cast, too.
        freed += _CAST * _small_weights(recipe) / _compute(recipe) / recipe.model.num_layers
    slack = _HEAP_SLACK[recipe.cross_entropy] * live_bytes
    if recipe.compile == "none":
        return fixed + slack + freed
    compiled = _HOST_COMPILED_BYTES + min(_HOST_COMPILED_SLACK_BYTES, live_bytes)
    return max(compiled, fixed + slack, fixed + freed)


def _small_weights(recipe: Recipe) -> int:
    """The bytes of all blocks' matrices that are small enough for the heap."""
    model = recipe.model
    columns = 2 * [model.attention_size] + 2 * [model.kv_size] + 3 * [model.intermediate_size]
    sizes = [_compute(recipe) * model.hidden_size * number for number in columns]
    return model.num_layers * sum(size for size in sizes if size < _SMALL_PIECE_BYTES)


def _state(recipe: Recipe, on_cpu: bool) -> _State:
    match recipe.strategy:
        case "ddp":
            return _ddp(recipe)
        case "fsdp":
            return _fsdp(recipe, on_cpu)
        case "zero1":
            return _zero1(recipe)
        case "zero2":
            return _zero2(recipe)
        case "zero3":
            return _zero3(recipe, on_cpu)
        case unknown:
            assert_never(unknown)


def _ddp(recipe: Recipe) -> _State:
    """Every rank holds all state in fp32. Gradients live in the buckets, which are never freed."""
    whole = _FP32 * recipe.model.num_parameters
    # A pass makes copies in lower precision; each is freed after its layer's backward.
    copies = 0 if recipe.precision == "fp32" else _compute(recipe) * _num_copied(recipe)
    return _State(
        parameters=whole,
        masters=0,
        moments=2 * whole,
        after_blocks=_embedding_gradient(recipe),
        as_backward_starts=_Moment(gradients=whole, working=copies),
        as_backward_ends=_Moment(gradients=whole, working=_embedding_gradient(recipe)),
        as_update_runs=_Moment(gradients=whole, working=0),
    )


def _num_copied(recipe: Recipe) -> int:
    """The parameters whose copies are held at once: with checkpointing one block's, and the root's."""
    model = recipe.model
    if recipe.activation_checkpointing == "none":
        return model.num_parameters
    return model.num_parameters - (model.num_layers - 1) * model.num_block_parameters


def _is_away(recipe: Recipe, on_cpu: bool) -> bool:
    """Whether the optimizer's state is in other memory than what is predicted."""
    return recipe.offload == "optimizer" and not on_cpu


def _fsdp(recipe: Recipe, on_cpu: bool) -> _State:
    """Every rank holds slices of all state. The blocks in use and the root (embedding and head) are gathered
    whole; the root stays gathered for the whole step. Offloaded moments come back for one matrix at a time.
    """
    model = recipe.model
    slices = _FP32 * model.num_parameters / recipe.ranks_per_copy
    largest = _FP32 * model.num_embedding_parameters / recipe.ranks_per_copy
    root_size = model.num_parameters - model.num_layers * model.num_block_parameters
    root = _compute(recipe) * root_size
    # One block computes while the next is gathered: a receive buffer and the laid-out weights.
    blocks = 3 * _compute(recipe) * model.num_block_parameters
    # The root's gradients are reduced last and together: whole, plus an fp32 copy to send.
    root_gradients = root + _FP32 * root_size
    return _State(
        parameters=slices,
        masters=0,
        moments=0 if _is_away(recipe, on_cpu) else 2 * slices,
        after_blocks=root_gradients - root / 2,  # Before it, only the head has a gradient.
        as_backward_starts=_Moment(gradients=slices if recipe.grad_accum > 1 else 0, working=root + blocks),
        as_backward_ends=_Moment(gradients=slices, working=root + root_gradients),
        as_update_runs=_Moment(gradients=slices, working=0 if recipe.offload == "none" else 2 * largest),
    )


def _zero1(recipe: Recipe) -> _State:
    """Every rank holds whole parameters and gradients, and slices of the fp32 masters and of the moments."""
    size, slices = recipe.model.num_parameters, _zero_slices(recipe)
    latest = _compute(recipe) * size
    # In bf16 the fp32 sums of all gradients are held besides the latest pass's own.
    sums = 0 if recipe.precision == "fp32" else _FP32 * size
    bucket = _zero_bucket(recipe)
    return _State(
        parameters=_compute(recipe) * size,
        masters=slices,
        moments=2 * slices,
        after_blocks=_embedding_gradient(recipe),
        as_backward_starts=_Moment(gradients=sums + (latest if recipe.grad_accum > 1 else 0), working=bucket),
        as_backward_ends=_Moment(
            gradients=sums + latest + slices, working=bucket + _embedding_gradient(recipe)
        ),
        as_update_runs=_Moment(gradients=sums + 2 * slices, working=0),
    )


def _zero2(recipe: Recipe) -> _State:
    """As stage 1, but a rank keeps only a slice of the gradients."""
    slices, bucket = _zero_slices(recipe), _zero_bucket(recipe)
    return _State(
        parameters=_compute(recipe) * recipe.model.num_parameters,
        masters=slices,
        moments=2 * slices,
        after_blocks=_embedding_gradient(recipe),
        as_backward_starts=_Moment(gradients=slices if recipe.grad_accum > 1 else 0, working=bucket),
        as_backward_ends=_Moment(gradients=slices, working=bucket + _embedding_gradient(recipe)),
        # DeepSpeed flattens the gradients into a copy.
        as_update_runs=_Moment(gradients=2 * slices, working=0),
    )


def _zero3(recipe: Recipe, on_cpu: bool) -> _State:
    """Every rank holds slices of all state. Whole parameters are gathered up to the limit of live ones,
    which is never below the embedding's size. Offloaded are all fp32 slices; gradients then have two buffers.
    """
    model, slices = recipe.model, _zero_slices(recipe)
    here, num_buffers = 0 if _is_away(recipe, on_cpu) else slices, 1 if recipe.offload == "none" else 2
    max_live = max(_zero_share(model) * _ZERO_MAX_LIVE, model.num_embedding_parameters)
    working = _compute(recipe) * min(max_live, model.num_parameters) + _zero_bucket(recipe)
    return _State(
        parameters=_compute(recipe) * model.num_parameters / recipe.world_size,
        masters=here,
        moments=2 * here,
        after_blocks=_embedding_gradient(recipe),
        # Stage 3 never frees its gradient buffers.
        as_backward_starts=_Moment(gradients=num_buffers * here, working=working),
        as_backward_ends=_Moment(gradients=num_buffers * here, working=working + _embedding_gradient(recipe)),
        as_update_runs=_Moment(gradients=2 * here, working=0),
    )


def _zero_slices(recipe: Recipe) -> float:
    return _FP32 * recipe.model.num_parameters / recipe.world_size


def _zero_bucket(recipe: Recipe) -> float:
    """The fp32 bytes of gradients on their way to the rank that keeps them."""
    return _FP32 * _zero_share(recipe.model) * _ZERO_REDUCE_BUCKET


def _zero_share(model: ModelConfig) -> float:
    return min(1.0, model.num_parameters / _ZERO_USUAL_PARAMETERS)


def _embedding_gradient(recipe: Recipe) -> float:
    """The gradient of the largest matrix, which is computed last.

    With tied embeddings there are two: the head's gradient waits for the lookup's.
    """
    whole = _compute(recipe) * recipe.model.num_embedding_parameters
    return 2 * whole if recipe.model.tied_embeddings else whole


def _activations(recipe: Recipe, on_cpu: bool, in_parts: bool) -> float:
    """What the forward pass keeps for the backward pass.

    With checkpointing, one block's is there in full besides what all blocks keep: as it is computed again.
    A compiled block doesn't compute again what it has kept.
    """
    kept = _kept_of_block(recipe, on_cpu, in_parts)
    blocks = recipe.model.num_layers * kept
    if recipe.activation_checkpointing != "none":
        blocks += _block(recipe, on_cpu, in_parts) - (0 if recipe.compile == "none" else kept)
    mask = _mask_bytes(recipe) if _is_masked(recipe) else 0
    mask += mask_of_parts_bytes(recipe) if in_parts else 0
    return _tokens(recipe) * (blocks + _norm_and_output(recipe, on_cpu)) + mask


def _mask_bytes(recipe: Recipe) -> int:
    return _compute(recipe) * recipe.seq_len * mask_row(recipe.seq_len)


def _kept_of_block(recipe: Recipe, on_cpu: bool, in_parts: bool) -> float:
    """What one block keeps for one token until its backward pass begins."""
    model, size = recipe.model, _compute(recipe)
    match recipe.activation_checkpointing:
        case "none":
            return _block(recipe, on_cpu, in_parts)
        case "selective":
            # The input, and the outputs of attention and of seven products. A compiled block does without the
            # last product's, which is the next block's input.
            hidden = (3 if recipe.compile == "none" else 2) * model.hidden_size
            attention = 2 * model.attention_size + 2 * model.kv_size
            return size * (hidden + attention + 2 * model.intermediate_size) + _FP32 * model.num_heads
        case "full":
            return size * model.hidden_size
        case unknown:
            assert_never(unknown)


def _block(recipe: Recipe, on_cpu: bool, in_parts: bool) -> float:
    """What one block keeps for one token. Of the attention scores only their sums are kept."""
    if recipe.compile == "block":
        return _compiled_block(recipe, on_cpu, in_parts)
    model, size = recipe.model, _compute(recipe)
    # Kept are queries, keys, values, the output, and one log-sum per query and head.
    attention = (
        size * (2 * model.attention_size + 2 * _kv_size(recipe, on_cpu, in_parts)) + _FP32 * model.num_heads
    )
    if model.qk_norm:
        # Each keeps its input as other norms do, and the output is queries or keys before their rotation.
        # Attention's output is kept a second time, laid out for its product.
        attention += (2 * _FP32 if on_cpu else size) * (model.attention_size + model.kv_size)
        attention += size * model.attention_size
    # Kept are the gate, its SiLU, the up projection and the product.
    mlp = 4 * size * model.intermediate_size
    return 2 * _norm_and_output(recipe, on_cpu) + attention + mlp


def _compiled_block(recipe: Recipe, on_cpu: bool, in_parts: bool) -> float:
    """What AOTAutograd's partitioner keeps: what products and attention read, and the sums of norms.

    All else is computed again, inside the kernels that read it. Seen by the tensors that the compiled forward
    pass of a block saves, on a CPU.
    """
    model, size = recipe.model, _compute(recipe)
    # The input, both norms' outputs, and the output projection's, from which the second norm's input comes.
    hidden = 4 * model.hidden_size
    attention = 2 * model.attention_size + 2 * _kv_size(recipe, on_cpu, in_parts)
    sums = 2 + model.num_heads
    if model.qk_norm:
        # Queries and keys before their norms; and attention's output a second time, as above.
        attention += 2 * model.attention_size + model.kv_size
        sums += model.num_heads + model.num_kv_heads
    # The gate, the up projection and the product.
    mlp = 3 * model.intermediate_size
    return size * (hidden + attention + mlp) + _FP32 * sums


def _kv_size(recipe: Recipe, on_cpu: bool, in_parts: bool) -> int:
    """The width of keys or values as attention takes them: repeated for kernels without grouped queries."""
    takes_groups = on_cpu or recipe.attention == "flex"
    is_repeated = not takes_groups and (in_parts or _is_masked(recipe) or recipe.precision == "fp32")
    return recipe.model.attention_size if is_repeated else recipe.model.kv_size


def _norm_and_output(recipe: Recipe, on_cpu: bool) -> float:
    """A norm keeps its input; without a fused kernel in fp32, and the normalised input too."""
    hidden = recipe.model.hidden_size
    return (2 * _FP32 if on_cpu else _compute(recipe)) * hidden + _compute(recipe) * hidden


def _is_masked(recipe: Recipe) -> bool:
    window = recipe.model.sliding_window
    return window is not None and recipe.seq_len > window and recipe.attention != "flex"


def _logits(recipe: Recipe) -> float:
    """The larger of two moments around the head, while all activations are still alive.

    The first holds the fp32 log-probabilities, their gradient and the logits' gradient. The second holds the
    logits' gradient and the head's gradient that is computed from it.
    """
    model, size, tokens = recipe.model, _compute(recipe), _tokens(recipe)
    if recipe.cross_entropy == "whole":
        loss = 3 * _FP32 * tokens
        head = size * (tokens + model.hidden_size)
        return model.vocab_size * max(loss, head)
    return model.vocab_size * _chunked_logits(recipe) + size * tokens * model.hidden_size


def _chunked_logits(recipe: Recipe) -> float:
    """The larger of two moments, per word of the vocabulary.

    As a chunk's logits become fp32, they are there in the dtype of the computation too. Then their gradient
    is there, with the head's gradient of the chunk, which is added to the fp32 sum of all: in fp32 without a
    copy.
    """
    tokens, hidden, size = _tokens(recipe), recipe.model.hidden_size, _compute(recipe)
    chunk = min(tokens, tokens_per_chunk(recipe.model.vocab_size))
    is_only, is_fp32 = chunk == tokens, recipe.precision == "fp32"
    cast = (_FP32 if is_fp32 else _FP32 + size) * chunk + (0 if is_only else _FP32 * hidden)
    products = size * chunk + (_FP32 if is_fp32 else _FP32 + size) * hidden
    return max(cast, products)


def _tokens(recipe: Recipe) -> int:
    """The tokens of one micro-batch."""
    return recipe.micro_batch * recipe.seq_len


def _compute(recipe: Recipe) -> int:
    return _COMPUTE[recipe.precision]
