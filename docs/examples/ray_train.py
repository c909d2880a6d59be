"""A training loop of one's own in Ray Train's ``TorchTrainer``, on CPUs. See docs/own-loop.md."""

import sys
from tempfile import TemporaryDirectory

import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

from jobs import durable


def loop(config: dict) -> None:
    """What each worker does. Ray has made the process group before."""
    torch.manual_seed(1)
    data = torch.randn(256, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))
    trained = prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    state = {"model": model, "optimizer": optimizer}
    saves = {"every_steps": 5, "on_busy": "wait"}
    with durable.run("own", store=config["store"], state=state, checkpoint=saves) as run:
        batches = iter(run.batches(len(data), batch_size=8, seed=1))
        for _ in run.steps(config["num_steps"]):
            rows = data[next(batches)]
            loss = (trained(rows).squeeze(1) - rows.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.record(loss=loss)


def main(store: str, num_steps: int, num_workers: int = 2) -> None:
    """``store`` is a URL or an absolute path: workers start in folders of their own."""
    with TemporaryDirectory() as rays_own:
        TorchTrainer(
            loop,
            train_loop_config={"store": store, "num_steps": num_steps},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=num_workers),
            # Ray starts all workers anew when one dies; the run then resumes from its newest save.
            run_config=RunConfig(storage_path=rays_own, failure_config=FailureConfig(max_failures=3)),
        ).fit()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
