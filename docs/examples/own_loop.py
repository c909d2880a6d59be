"""A training loop of one's own in plain torch, on one process or under torchrun. See docs/own-loop.md."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from jobs import durable


def main(store: str, num_steps: int) -> None:
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = torch.randn(256, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.BatchNorm1d(32), nn.Linear(32, 1))
    trained = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    seen = {"samples": 0}

    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "seen": seen}
    with durable.run(
        "own", store=store, state=state, checkpoint={"every_steps": 5, "on_busy": "wait"}
    ) as run:
        batches = iter(run.batches(len(data), batch_size=8, seed=1))
        for step in run.steps(num_steps):
            rows = data[next(batches)]
            loss = (trained(rows).squeeze(1) - rows.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            seen["samples"] += len(rows)
            run.record(loss=loss, learning_rate=schedule.get_last_lr()[0])
            print(f"did {step}", flush=True)
    print("stopped" if run.is_stopped else "finished", f"at step {run.step}: {run.generation}", seen)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
