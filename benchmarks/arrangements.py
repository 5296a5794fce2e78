"""Compare the gradients of two processes with those of one, in each usual arrangement.

python benchmarks/arrangements.py            # writes the table of docs/guide/distributed.md

Each process has half of a batch. `SCSSupCon(preset="learned", gather_across_devices=True)` is
placed outside or inside the wrapper of a library, one step of SGD with learning rate 1 is taken,
and the change of the encoder, t' and b is divided by the change that one process with the whole
batch makes: 1 is exact, 0.5 would be half the gradient. The table needs every library; the test
leaves out those that are not installed.

The script starts itself as `arrangements.py RANK WORLD FOLDER`, once per process.
"""

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scs_supcon import SCSSupCon
from scs_supcon.kernels import Gather, sum_gradients

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "distributed.md"
BEGIN, END = "<!-- arrangements: begin -->", "<!-- arrangements: end -->"
ROWS, WIDTH, PARTS = 12, 6, ("encoder", "log_t", "b")

Arrays = dict[str, np.ndarray]


def batch() -> tuple[Tensor, Tensor]:
    """Return the whole batch: points and labels."""
    source = torch.Generator().manual_seed(1)
    points = torch.randn(ROWS, WIDTH, generator=source, dtype=torch.float64)
    return points, torch.randint(3, (ROWS,), generator=source)


def share(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """Return the rows of one process."""
    points, labels = batch()
    size = ROWS // world
    return points[rank * size : (rank + 1) * size], labels[rank * size : (rank + 1) * size]


class Model(nn.Module):
    """An encoder with the loss inside: `model(points, labels)` returns the loss."""

    def __init__(self, dtype: torch.dtype = torch.float64, **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 8)).to(dtype)
        options = {"gather_across_devices": True} | options
        self.loss = SCSSupCon(preset="learned", t0=5.0, b0=1.0, beta=0.1, **options)

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        dtype = next(self.encoder.parameters()).dtype
        value: Tensor = self.loss(self.encoder(points.to(dtype)), labels)
        return value


def values(model: Model) -> Arrays:
    """Return the weights of the encoder, t' and b."""

    def whole(x: Tensor) -> np.ndarray:
        x = x.detach()
        x = x.full_tensor() if hasattr(x, "full_tensor") else x
        return x.double().flatten().numpy().copy()

    encoder = np.concatenate([whole(p) for p in model.encoder.parameters()])
    return {"encoder": encoder, "log_t": whole(model.loss.log_t), "b": whole(model.loss.b)}


def descend(model: Model, compute: Callable[..., Tensor], *rows: Tensor) -> None:
    """Take one step of gradient descent with learning rate 1."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    compute(*rows).backward()
    optimizer.step()


def one_process() -> Model:
    """Return the model after one step on the whole batch."""
    model = Model(gather_across_devices=False)
    descend(model, model, *batch())
    return model


def by_hand(rank: int, world: int, reduction: str) -> Model:
    """No wrapper: the gradients of the encoder are summed or averaged by hand."""
    model = Model(gather_across_devices=Gather(gradient_reduction=reduction))
    model(*share(rank, world)).backward()
    for parameter in model.encoder.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= 1 if reduction == "sum" else world
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return model


def ddp_outside(rank: int, world: int, hook: bool = False) -> Model:
    """DistributedDataParallel(encoder), loss outside."""
    model = Model()
    encoder = DistributedDataParallel(model.encoder)
    if hook:
        encoder.register_comm_hook(None, sum_gradients)
    descend(model, lambda x, y: model.loss(encoder(x), y), *share(rank, world))
    return model


def ddp_inside(rank: int, world: int) -> Model:
    """DistributedDataParallel of encoder and loss."""
    model = Model()
    descend(model, DistributedDataParallel(model), *share(rank, world))
    return model


def ddp_of_each(rank: int, world: int) -> Model:
    """Encoder and loss each in a DistributedDataParallel of its own."""
    model = Model()
    encoder, loss = DistributedDataParallel(model.encoder), DistributedDataParallel(model.loss)
    descend(model, lambda x, y: loss(encoder(x), y), *share(rank, world))
    return model


def metric_learning(rank: int, world: int) -> Model:
    """pytorch-metric-learning's wrapper gathers the rows; loss outside."""
    from scs_supcon.pml import DistributedLossWrapper, MetricLearningLoss

    model = Model(gather_across_devices=False)
    encoder = DistributedDataParallel(model.encoder)
    loss = DistributedLossWrapper(MetricLearningLoss(model.loss))
    descend(model, lambda x, y: loss(encoder(x), y), *share(rank, world))
    return model


def fsdp_outside(rank: int, world: int) -> Model:
    """fully_shard(encoder), loss outside."""
    from torch.distributed.fsdp import fully_shard

    model = Model()
    fully_shard(model.encoder, mesh=dist.init_device_mesh("cpu", (world,)))
    descend(model, lambda x, y: model.loss(model.encoder(x), y), *share(rank, world))
    return model


def fsdp_inside(rank: int, world: int) -> Model:
    """fully_shard(loss), then fully_shard of encoder and loss."""
    from torch.distributed.fsdp import fully_shard

    model = Model(torch.float32)
    mesh = dist.init_device_mesh("cpu", (world,))
    fully_shard(model.loss, mesh=mesh)
    fully_shard(model, mesh=mesh)
    descend(model, model, *share(rank, world))
    return model


def lightning(rank: int, world: int) -> Model:
    """Lightning's Trainer with strategy "ddp"; the loss is part of the module."""
    import lightning as L
    from torch.utils.data import DataLoader, TensorDataset

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, rows: list[Tensor], _: int) -> Tensor:
            value: Tensor = self.model(*rows)
            return value

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    module = Module()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp",
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(*share(rank, world)), batch_size=ROWS))
    return module.model


def accelerate(rank: int, world: int, inside: bool) -> Model:
    """Accelerate; the loss is prepared together with the encoder, or not at all."""
    from accelerate import Accelerator

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accelerator = Accelerator(cpu=True)
    encoder, loss, optimizer = accelerator.prepare(model.encoder, model.loss, optimizer)
    points, labels = share(rank, world)
    accelerator.backward((loss if inside else model.loss)(encoder(points), labels))
    optimizer.step()
    return model


def trainer(rank: int, world: int) -> Model:
    """The Trainer of Hugging Face transformers; the model returns the loss."""
    from transformers import Trainer, TrainingArguments

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": self.model(points, labels)}

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    points, labels = batch()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=ROWS // world,
            max_steps=1,
            max_grad_norm=0.0,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            ddp_find_unused_parameters=False,
        )
        Trainer(
            model,
            arguments,
            train_dataset=[{"points": x, "labels": y} for x, y in zip(points, labels, strict=True)],
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
        ).train()
    return model.model


ARRANGEMENTS: dict[str, tuple[str | None, Callable[[int, int], Model]]] = {
    "no wrapper, gradients averaged by hand": (None, lambda r, w: by_hand(r, w, "mean")),
    'no wrapper, gradients summed by hand, `gradient_reduction="sum"`': (
        None,
        lambda r, w: by_hand(r, w, "sum"),
    ),
    "DistributedDataParallel, loss outside": (None, ddp_outside),
    "DistributedDataParallel with the hook `sum_gradients`, loss outside": (
        None,
        lambda r, w: ddp_outside(r, w, hook=True),
    ),
    "DistributedDataParallel, loss inside": (None, ddp_inside),
    "DistributedDataParallel, loss in one of its own": (None, ddp_of_each),
    "FSDP2 (`fully_shard`), loss outside": (None, fsdp_outside),
    "FSDP2, loss inside, float32 encoder": (None, fsdp_inside),
    "Lightning Trainer, DDP": ("lightning", lightning),
    "Accelerate, loss not prepared": ("accelerate", lambda r, w: accelerate(r, w, False)),
    "Accelerate, loss prepared": ("accelerate", lambda r, w: accelerate(r, w, True)),
    "Hugging Face Trainer": ("transformers", trainer),
    "`scs_supcon.pml.DistributedLossWrapper`, DistributedDataParallel": (
        "pytorch_metric_learning",
        metric_learning,
    ),
}


def available(library: str | None) -> bool:
    """Return whether a library is installed."""
    return library is None or find_spec(library) is not None


def on_this_rank(rank: int, world: int) -> Arrays:
    """Return the values after a step, for each arrangement of the installed libraries."""
    results: Arrays = {}
    for name, (library, run) in ARRANGEMENTS.items():
        if available(library):
            results |= {f"{name}: {part}": x for part, x in values(run(rank, world)).items()}
    return results


def ratios(ranks: list[Arrays]) -> dict[str, dict[str, list[float]]]:
    """Return, for each arrangement and part, the ratios of all numbers and ranks to one process."""
    start, end = values(Model()), values(one_process())
    table: dict[str, dict[str, list[float]]] = {}
    for name in ARRANGEMENTS:
        for part in PARTS:
            expected = end[part] - start[part]
            changes = [r[f"{name}: {part}"] - start[part] for r in ranks if f"{name}: {part}" in r]
            large = abs(expected) > 1e-3 * abs(expected).max()
            if changes:
                quotients = np.concatenate([(x / expected)[large] for x in changes])
                table.setdefault(name, {})[part] = quotients.tolist()
    return table


def markdown(table: dict[str, dict[str, list[float]]]) -> str:
    """Return the table; a cell is the ratio that is furthest from 1."""
    lines = ["| arrangement | encoder | t | b |", "|---|---:|---:|---:|"]
    for name, parts in table.items():
        furthest = [max(parts[part], key=lambda x: abs(x - 1)) for part in PARTS]
        lines.append(f"| {name} | " + " | ".join(f"{x:.4f}" for x in furthest) + " |")
    return "\n".join(lines)


def start_process_group(rank: int, world: int, folder: Path) -> None:
    """Join the process group, and tell the libraries about it as torchrun does."""
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29511, "TORCHELASTIC_RUN_ID": "one"}
    os.environ.update({name: str(value) for name, value in environment.items()})
    os.environ["ACCELERATE_USE_CPU"] = "true"
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def one_rank(rank: int, world: int, folder: Path) -> None:
    """Run every arrangement in this process and store the results."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    start_process_group(rank, world, folder)
    np.savez(folder / f"{rank}.npz", **on_this_rank(rank, world))
    dist.barrier()
    os._exit(0)  # the libraries keep references to the group, whose threads would abort the exit


def main() -> None:
    """Run two processes and write the whole table; every library has to be installed."""
    missing = {library for library, _ in ARRANGEMENTS.values() if not available(library)}
    if missing:
        raise SystemExit(
            f"install first, or rows would be lost: {', '.join(sorted(map(str, missing)))}"
        )
    with tempfile.TemporaryDirectory() as folder:
        commands = [[sys.executable, __file__, str(rank), "2", folder] for rank in range(2)]
        for process in [subprocess.Popen(command) for command in commands]:
            assert process.wait() == 0
        ranks = []
        for rank in range(2):
            with np.load(Path(folder) / f"{rank}.npz") as arrays:
                ranks.append(dict(arrays))
    table = markdown(ratios(ranks))
    print(table)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        one_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
