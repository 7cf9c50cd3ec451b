"""One loop for every stage: AdamW, virtual batches, a schedule, early stopping on validation, best weights kept.

K independent learners train as one stack. Each draws its own batches from its own generator, follows its own schedule
and stops on its own, so that its result is the same alone and in company.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from redx.config import TrainingConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.io.hardware import check_precision
from redx.io.progress import progress

log = logging.getLogger("redx")


Loss = Callable[[Tensor], Tensor]  # rows (K, B) of each learner's own data -> losses (K,)


Score = Callable[[int], float]  # learner -> its figure on validation, larger is better


def fit(
    parameters: Sequence[Tensor],
    loss: Loss,
    sizes: Sequence[int],
    generators: Sequence[Generator],
    *,
    title: str,
    epochs: int,
    batch: int,
    virtual_batch: int,
    lr: float,
    weight_decay: float,
    warmup: float,
    schedule: str,
    patience: int | None = None,
    precision: str = "float32",
    clip: float | None = None,
    beta: float = 0.999,
    score: Score | None = None,
    buffers: Sequence[Tensor] = (),
) -> list[int]:
    """Train K learners that hold `sizes[k]` examples each; gives the number of epochs each one took.

    With K > 1 every parameter carries the learner as its first axis; with K = 1 its shape is free. `buffers` are kept
    and restored with the parameters. Weight decay holds for matrices alone, not for biases and scales.
    """
    check_precision(precision, parameters[0].device.type)
    learners = len(sizes)
    if not all(sizes):
        raise RedxError(f"Stage '{title}' has a learner without any examples; give every domain some.")
    epoch = [math.ceil(size / virtual_batch) for size in sizes]  # steps an epoch takes
    total = [epochs * steps for steps in epoch]
    streams = [_Stream(size, generator) for size, generator in zip(sizes, generators, strict=True)]
    matrices = [parameter for parameter in parameters if sum(size > 1 for size in parameter.shape[-2:]) > 1]
    others = [parameter for parameter in parameters if all(parameter is not matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta), fused=True)
    dtype = getattr(torch, precision)
    # float16 loses small gradients unless they are scaled up
    scaler = torch.amp.GradScaler(parameters[0].device.type, enabled=dtype == torch.float16)
    best = [-math.inf] * learners
    state = [*parameters, *buffers]
    kept = [tensor.detach().clone() for tensor in state]
    waited = [0] * learners
    running = [True] * learners
    taken = [0] * learners
    with progress(title, max(total)) as advance:
        for step in range(max(total)):
            rows = torch.stack([stream.take(virtual_batch) for stream in streams])  # (K, B)
            optimiser.zero_grad(set_to_none=True)
            pieces = rows.split(batch, dim=1)
            for piece in pieces:
                with torch.autocast(parameters[0].device.type, dtype, enabled=dtype != torch.float32):
                    each = loss(piece) * (piece.shape[1] / virtual_batch)
                if not bool(each.isfinite().all()):
                    raise RedxError(
                        f"The loss of stage '{title}' became NaN or infinite at step {step + 1}; "
                        "lower its learning rate or look for NaN in the data."
                    )
                scaler.scale(each.sum()).backward()
            if clip is not None:
                scaler.unscale_(optimiser)
                _clip(parameters, clip, learners)
            before = [parameter.detach().clone() for parameter in parameters]
            scaler.step(optimiser)
            scaler.update()
            rates = [_rate(step / total[k], warmup, schedule) if running[k] else 0.0 for k in range(learners)]
            _scale_step(parameters, before, rates)
            for k in range(learners):
                if not running[k] or (step + 1) % epoch[k]:
                    continue
                taken[k] += 1
                if score is not None and patience is not None:
                    reached = score(k)
                    waited[k] = 0 if reached > best[k] else waited[k] + 1
                    if reached > best[k]:
                        best[k] = reached
                        _copy(state, kept, k, learners)
                running[k] = step + 1 < total[k] and (patience is None or waited[k] < patience)
            advance(1)
            if not any(running):
                break
    if score is not None and patience is not None:
        for k in range(learners):
            _copy(kept, state, k, learners)
    log.info("%s: %s epochs", title, ", ".join(map(str, sorted(set(taken)))))
    return taken


class _Stream:
    """An endless shuffle of the rows 0 … size-1: each pass in a new order."""

    def __init__(self, size: int, generator: Generator) -> None:
        self.size, self.generator = size, generator
        self.rest = torch.empty(0, dtype=torch.long)

    def take(self, count: int) -> Tensor:
        while len(self.rest) < count:
            self.rest = torch.cat([self.rest, torch.randperm(self.size, generator=self.generator)])
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken


def _rate(progressed: float, warmup: float, schedule: str) -> float:
    """The learning rate as a share of its peak."""
    if progressed < warmup:
        return (progressed + 1e-3) / (warmup + 1e-3)
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (progressed - warmup) / max(1e-9, 1 - warmup)))


def _clip(parameters: Sequence[Tensor], limit: float, learners: int) -> None:
    """Shorten the gradient of each learner to this norm at most."""
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    rows = [grad.view(learners if learners > 1 else 1, -1) for grad in found]
    norms = torch.stack([row.square().sum(1) for row in rows]).sum(0).sqrt()  # (K,)
    share = (limit / (norms + 1e-6)).clamp_max(1)
    for row in rows:
        row.mul_(share[:, None])


def _scale_step(parameters: Sequence[Tensor], before: Sequence[Tensor], rates: list[float]) -> None:
    """AdamW's step is linear in its rate, so scaling it by slice gives every learner a rate of its own."""
    with torch.no_grad():
        for parameter, old in zip(parameters, before, strict=True):
            share = torch.tensor(rates, dtype=parameter.dtype, device=parameter.device)
            share = share.view(-1, *[1] * (parameter.ndim - 1)) if len(rates) > 1 else share[0]
            parameter.copy_(old + share * (parameter - old))


def _copy(source: Sequence[Tensor], target: Sequence[Tensor], learner: int, learners: int) -> None:
    with torch.no_grad():
        for old, new in zip(source, target, strict=True):
            if learners > 1:
                new[learner] = old[learner]
            else:
                new.copy_(old)


def draw_rows(splits: Sequence[Split], count: int, draws: Sequence[Generator]) -> Tensor:
    """Random rows of each split, from its own generator: (K, B)."""
    pairs = zip(splits, draws, strict=True)
    return torch.stack([torch.randint(len(split), (count,), generator=draw) for split, draw in pairs])


def gather_rows(splits: Sequence[Split], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Row k of `rows` taken from split k: (K, B, E) and (K, B)."""
    pairs = list(zip(splits, rows, strict=True))
    return torch.stack([split.inputs[some] for split, some in pairs]), torch.stack(
        [s.labels[some] for s, some in pairs]
    )


def dropout(x: Tensor, share: float, draws: Sequence[Generator]) -> Tensor:
    """Dropout in which learner k draws from generator k: (K, B, E) to the same.

    A byte decides a value, eight of them a draw: drawing is what costs time here. So the share counts in 256ths.
    """
    cut = round(256 * share)
    if cut == 0:
        return x
    size = x[0].numel()
    words = [torch.empty(-(-size // 8), dtype=torch.long).random_(-(2**63), None, generator=draw) for draw in draws]
    kept = torch.stack([word.view(torch.uint8)[:size].view(x.shape[1:]) for word in words]) >= cut
    return x * kept / (1 - cut / 256)


def train(
    settings: TrainingConfig,
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    sizes: list[int],
    batches: Sequence[torch.Generator],
    score: Callable[[int], float] | None,
    title: str,
) -> None:
    """The one loop, with the settings of a stage."""
    state = {"buffers": list(module.buffers()), "score": score}
    fit(list(module.parameters()), loss, sizes, batches, title=title, **state, **settings.model_dump())
