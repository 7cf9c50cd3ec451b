"""One training loop for every stage: AdamW, virtual batches, a schedule, early stopping on validation.

K independent learners train as one stack. Each draws its batches from its own generator, follows its own schedule and
stops on its own, so that its result does not depend on the other learners.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Generator, Tensor, nn

from redx.config import TrainingConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.io.hardware import check_precision
from redx.io.progress import progress
from redx.training.recording import Watch

log = logging.getLogger("redx")

Loss = Callable[[Tensor], Tensor]  # rows (K, B) of each learner's own data -> losses (K,)
Score = Callable[[int], float]  # learner -> its score on validation; larger is better


def train(
    module: nn.Module | Sequence[nn.Parameter],
    loss: Loss,
    sizes: Sequence[int],
    generators: Sequence[Generator],
    config: TrainingConfig,
    title: str,
    score: Score | None = None,
    names: Sequence[str] | None = None,
) -> list[int]:
    """Train K learners in place.

    Parameters
    ----------
    module
        A module, or the parameters to train. With K > 1 the first axis of every parameter is the learner; with K = 1
        its shape is free. Buffers of a module are kept and restored together with the best parameters.
    loss
        Takes rows of each learner's own data, (K, B), to losses, (K,).
    sizes
        Number of examples of each learner.
    generators
        Each learner's source of batches.
    config
        Settings of the stage. Weight decay applies to matrices only, not to biases and scales.
    title
        Name of the stage, for progress bars, logs and errors.
    score
        Score of a learner on validation; with `config.patience` the best state is kept and training stops early.
    names
        Names of the learners, for a recorder (`redx.training.recording`).

    Returns
    -------
    list of int
        The number of epochs that each learner took.
    """
    parameters = list(module.parameters()) if isinstance(module, nn.Module) else list(module)
    buffers = list(module.buffers()) if isinstance(module, nn.Module) else []
    device = parameters[0].device.type
    check_precision(config.precision, device)
    learners = len(sizes)
    if not all(sizes):
        raise RedxError(f"Stage '{title}' has a learner without any examples; give every domain some.")
    epoch_steps = [math.ceil(size / config.virtual_batch) for size in sizes]
    total_steps = [config.epochs * steps for steps in epoch_steps]
    shuffles = [_Shuffle(size, generator) for size, generator in zip(sizes, generators, strict=True)]
    optimiser = _optimiser(parameters, config)
    dtype = getattr(torch, config.precision)
    # float16 loses small gradients unless they are scaled up
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    stop_early = score is not None and config.patience is not None
    state = [*parameters, *buffers]
    best_state = [tensor.detach().clone() for tensor in state]
    best = [-math.inf] * learners
    waited, epochs, running = [0] * learners, [0] * learners, [True] * learners
    watch = Watch.begin(title, names, learners, config.epochs)
    with progress(title, max(total_steps)) as advance:
        for step in range(max(total_steps)):
            rows = torch.stack([shuffle.take(config.virtual_batch) for shuffle in shuffles])  # (K, B)
            optimiser.zero_grad(set_to_none=True)
            for batch in rows.split(config.batch, dim=1):
                with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                    losses = loss(batch) * (batch.shape[1] / config.virtual_batch)
                if not bool(losses.isfinite().all()):
                    raise RedxError(
                        f"The loss of stage '{title}' became NaN or infinite at step {step + 1}; "
                        "lower its learning rate or look for NaN in the data."
                    )
                scaler.scale(losses.sum()).backward()
                if watch:
                    watch.add(losses)
            if config.clip is not None:
                scaler.unscale_(optimiser)
                _clip_gradients(parameters, config.clip, learners)
            before = [parameter.detach().clone() for parameter in parameters]
            scaler.step(optimiser)
            scaler.update()
            rates = [_rate(step / total_steps[k], config) if running[k] else 0.0 for k in range(learners)]
            _scale_step(parameters, before, rates)
            if watch:
                watch.step()
            for k in range(learners):
                if not running[k] or (step + 1) % epoch_steps[k]:
                    continue
                epochs[k] += 1
                if watch:
                    watch.epoch(k, epochs[k], rates[k] * config.lr, partial(score, k) if score else None)
                if score is not None and stop_early:
                    reached = score(k)
                    waited[k] = 0 if reached > best[k] else waited[k] + 1
                    if reached > best[k]:
                        best[k] = reached
                        _copy_learner(state, best_state, k, learners)
                running[k] = step + 1 < total_steps[k] and (config.patience is None or waited[k] < config.patience)
            advance(1)
            if not any(running):
                break
    if watch:
        watch.finish()
    if stop_early:
        for k in range(learners):
            _copy_learner(best_state, state, k, learners)
    log.info("%s: %s epochs", title, ", ".join(map(str, sorted(set(epochs)))))
    return epochs


class _Shuffle:
    """An endless stream of the rows 0 … size-1, each pass in a new random order."""

    def __init__(self, size: int, generator: Generator) -> None:
        self.size, self.generator = size, generator
        self.rest = torch.empty(0, dtype=torch.long)

    def take(self, count: int) -> Tensor:
        while len(self.rest) < count:
            self.rest = torch.cat([self.rest, torch.randperm(self.size, generator=self.generator)])
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken


def _optimiser(parameters: Sequence[Tensor], config: TrainingConfig) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in parameters if sum(size > 1 for size in parameter.shape[-2:]) > 1]
    others = [parameter for parameter in parameters if all(parameter is not matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, config.beta), fused=True)


def _rate(done: float, config: TrainingConfig) -> float:
    """Return the learning rate as a share of its peak, after this share of the steps."""
    if done < config.warmup:
        return (done + 1e-3) / (config.warmup + 1e-3)
    if config.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (done - config.warmup) / max(1e-9, 1 - config.warmup)))


def _clip_gradients(parameters: Sequence[Tensor], limit: float, learners: int) -> None:
    """Scale the gradient of each learner down to this norm at most."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    rows = [gradient.view(learners if learners > 1 else 1, -1) for gradient in gradients]
    norms = torch.stack([row.square().sum(1) for row in rows]).sum(0).sqrt()  # (K,)
    factors = (limit / (norms + 1e-6)).clamp_max(1)
    for row in rows:
        row.mul_(factors[:, None])


def _scale_step(parameters: Sequence[Tensor], before: Sequence[Tensor], rates: list[float]) -> None:
    """Scale the optimiser's step by learner: AdamW's step is linear in its rate, so each learner gets its own rate."""
    with torch.no_grad():
        for parameter, old in zip(parameters, before, strict=True):
            factors = torch.tensor(rates, dtype=parameter.dtype, device=parameter.device)
            factors = factors.view(-1, *[1] * (parameter.ndim - 1)) if len(rates) > 1 else factors[0]
            parameter.copy_(old + factors * (parameter - old))


def _copy_learner(source: Sequence[Tensor], target: Sequence[Tensor], learner: int, learners: int) -> None:
    with torch.no_grad():
        for old, new in zip(source, target, strict=True):
            if learners > 1:
                new[learner] = old[learner]
            else:
                new.copy_(old)


# --- batches of K learners


def draw_rows(splits: Sequence[Split], count: int, generators: Sequence[Generator]) -> Tensor:
    """Return random rows of each split, drawn from its own generator: (K, B)."""
    pairs = zip(splits, generators, strict=True)
    return torch.stack([torch.randint(len(split), (count,), generator=generator) for split, generator in pairs])


def gather_rows(splits: Sequence[Split], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of row k of `rows` from split k: (K, B, E) and (K, B)."""
    pairs = list(zip(splits, rows, strict=True))
    inputs = torch.stack([split.inputs[chosen] for split, chosen in pairs])
    return inputs, torch.stack([split.labels[chosen] for split, chosen in pairs])


def dropout(x: Tensor, share: float, generators: Sequence[Generator]) -> Tensor:
    """Apply dropout to (K, B, E), drawing for learner k from generator k.

    One random byte decides one value, and eight bytes come from one draw, since drawing is what costs time here. The
    share is therefore rounded to a multiple of 1/256.
    """
    cut = round(256 * share)
    if cut == 0:
        return x
    size = x[0].numel()
    words = [
        torch.empty(-(-size // 8), dtype=torch.long).random_(-(2**63), None, generator=generator)
        for generator in generators
    ]
    kept = torch.stack([word.view(torch.uint8)[:size].view(x.shape[1:]) for word in words]) >= cut
    return x * kept.to(x.device) / (1 - cut / 256)
