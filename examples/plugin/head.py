"""A head from outside on the splits of a run: its outputs as a parts file, which `redx certify --parts` measures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
from sklearn.linear_model import LogisticRegression

from redx.runs.folder import read_config
from redx.tasks import get_task

run, out = Path(sys.argv[1]), Path(sys.argv[2])
config = read_config(run)
data = get_task(config.task).load(config, config.seeds[0])  # the splits of the run, by its settings and its seed
head = LogisticRegression(max_iter=2000).fit(data.train.inputs.numpy(), data.train.labels.numpy())
logits = head.predict_log_proba(data.test.inputs.numpy())  # (N, C); the classes are those of the run, in its order
count, classes = logits.shape
numpy.savez(
    out,
    base=numpy.zeros((count, classes)),
    residuals=logits[:, None],  # (N, 1, C): one expert, so that no router can change the answer
    gates=numpy.zeros((count, 1)),
    labels=data.test.labels.numpy(),
    domains=data.test.domains.numpy(),
)
print(f"{out}: {count} examples, {classes} classes")
