"""Six chat templates as models have them, each with and without marks, and a small tokenizer for all of them.

``{G}`` and ``{/G}`` become ``{% generation %}`` and its end in the marked form, and nothing in the other one.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

_CHATML = (
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
    "{%- else %}\n"
    "    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'assistant' %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' }}"
    "{G}{{- message.content + '<|im_end|>' }}{/G}{{- '\\n' }}\n"
    "    {%- elif message.role == 'user' or not loop.first %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)
_LLAMA = (
    "{{- bos_token }}\n"
    "{%- if not date_string is defined %}\n"
    "    {%- set date_string = '26 Jul 2024' %}\n"
    "{%- endif %}\n"
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {%- set system_message = messages[0]['content']|trim %}\n"
    "    {%- set messages = messages[1:] %}\n"
    "{%- else %}\n"
    "    {%- set system_message = '' %}\n"
    "{%- endif %}\n"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}\n"
    "{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' }}\n"
    "{{- system_message }}\n"
    "{{- '<|eot_id|>' }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n"
    "    {%- if message['role'] == 'assistant' %}\n"
    "        {G}{{- message['content'] | trim + '<|eot_id|>' }}{/G}\n"
    "    {%- else %}\n"
    "        {{- message['content'] | trim + '<|eot_id|>' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
    "{%- endif %}\n"
)
_MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{G}{{ ' ' + message['content'] + eos_token }}{/G}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)
_ZEPHYR = (
    "{% for message in messages %}\n"
    "{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\\n' }}{G}{{ message['content'] + eos_token }}{/G}{{ '\\n' }}"
    "{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n"
    "{% endif %}\n"
    "{% endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' }}"
    "{% if role == 'model' %}{G}{{ message['content'] | trim + '<end_of_turn>' }}{/G}{{ '\\n' }}"
    "{% else %}{{ message['content'] | trim + '<end_of_turn>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# It ends a text with another token where no answer is asked for.
_PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>\\n' }}{G}{{ message['content'] + '<|end|>' }}{/G}{{ '\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """``has_system``: whether the template takes a system message. ``ends`` is what ends an answer."""

    name: str
    template: str
    bos: str
    eos: str
    ends: str
    has_system: bool = True
    is_sentencepiece: bool = False

    def text(self, *, is_marked: bool) -> str:
        marks = ("{% generation %}", "{% endgeneration %}") if is_marked else ("", "")
        return self.template.replace("{G}", marks[0]).replace("{/G}", marks[1])


MODELS = [
    Model(name="qwen", template=_CHATML, bos="<|endoftext|>", eos="<|im_end|>", ends="<|im_end|>"),
    Model(name="llama", template=_LLAMA, bos="<|begin_of_text|>", eos="<|eot_id|>", ends="<|eot_id|>"),
    Model(
        name="mistral", template=_MISTRAL, bos="<s>", eos="</s>", ends="</s>", has_system=False,
        is_sentencepiece=True,
    ),
    Model(name="zephyr", template=_ZEPHYR, bos="<s>", eos="</s>", ends="</s>", is_sentencepiece=True),
    Model(
        name="gemma", template=_GEMMA, bos="<bos>", eos="<eos>", ends="<end_of_turn>", has_system=False,
        is_sentencepiece=True,
    ),
    Model(name="phi", template=_PHI, bos="<s>", eos="<|endoftext|>", ends="<|end|>", is_sentencepiece=True),
]  # fmt: skip
_SPECIAL = [
    "<unk>", "<s>", "</s>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|user|>",
    "<|assistant|>", "<|system|>", "<|end|>", "<start_of_turn>", "<end_of_turn>",
]  # fmt: skip
_TEXT = "the user asks the assistant\nand the model answers [INST] hello there [/INST]\n\n once more. " * 3


def write_model(folder: Path, model: Model, *, is_marked: bool = False) -> Path:
    """A tokenizer.json with its configuration beside it; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _sentencepiece() if model.is_sentencepiece else _byte_level()
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": model.bos,
        "eos_token": {"content": model.eos, "__type": "AddedToken", "special": True},
        "chat_template": model.text(is_marked=is_marked),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return file


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _learnt(tokenizer, pre_tokenizers.ByteLevel.alphabet())


def _sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    blank = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.normalizer = blank
    return _learnt(tokenizer, [f"<0x{byte:02X}>" for byte in range(256)])


def _learnt(tokenizer: Tokenizer, alphabet: list[str]) -> Tokenizer:
    special = [AddedToken(token, special=True, normalized=False) for token in [*_SPECIAL, *_bytes(alphabet)]]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=[one for one in alphabet if len(one) == 1],
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer


def _bytes(alphabet: list[str]) -> list[str]:
    return [one for one in alphabet if len(one) > 1]


def conversation(*, system: bool) -> list[dict[str, str]]:
    """With several turns, white space at all edges, and characters of several bytes."""
    first = [{"role": "system", "content": "Be brief."}] if system else []
    return [
        *first,
        {"role": "user", "content": "hello there, assistant"},
        {"role": "assistant", "content": "the model answers.\n\nOnce more: ü 😀"},
        {"role": "user", "content": "and\nthe user asks: 日本?"},
        {"role": "assistant", "content": "日本 [INST] <s"},
        {"role": "user", "content": "once more"},
        {"role": "assistant", "content": "😀😀"},
    ]
