"""transformers' Trainer as a durable run. See docs/own-loop.md."""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from jobs.durable.hugging_face import train


def main(store: str, num_steps: int) -> None:
    set_seed(1)
    rows = torch.randint(0, 64, (42, 16))
    samples = [{"input_ids": row, "labels": row} for row in rows]
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        attention_dropout=0.1,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=num_steps, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            eval_strategy="epoch", save_strategy="no", logging_steps=1, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(LlamaForCausalLM(config), args, train_dataset=samples, eval_dataset=samples[:4])
        run = train(trainer, "hf", store=store, checkpoint={"every_steps": 1, "on_busy": "wait"})
    print("stopped" if run.is_stopped else "finished", f"at step {run.step}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
