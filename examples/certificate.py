"""The waist in ten minutes: parts, rules, noise and the exact certificate, without training anything."""

# %% Three examples, two experts, three classes. The base is right twice; expert 0 mends the third example,
# and expert 1 would break the second if a router trusted it.
import torch

import redx
from redx.composition import certificate, evaluation, noise, rules
from redx.seeding import generator

parts = redx.Parts(
    base=torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.5]]),  # (N, C)
    residuals=torch.tensor(
        [
            [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]],
            [[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]],
            [[0.0, 0.0, 2.0], [0.0, 0.0, 0.0]],
        ]
    ),  # (N, K, C)
    gates=torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]),  # (N, K)
    labels=torch.tensor([0, 1, 2]),
    domains=torch.tensor([0, 0, 0]),
)

# %% Every rule is one formula; they differ in the weights.
for name in ("base", "red", "fixed", "sum", "red-oracle"):
    rule = rules.get_rule(name)
    weights = rule.weights(parts)
    right = evaluation.predict(rule, parts, weights) == parts.labels
    print(f"{name:<11} right: {right.tolist()}")

# %% How wrong may the router be? The radius is the exact share of routing weight an adversary may move.
red = rules.get_rule("red")
judged = redx.certify(red, parts)
print("radius", [round(value, 3) for value in judged.radius.tolist()])

# %% Just above the radius there is a router that changes the answer, and here it is.
weights = red.weights(parts)
scores, corners = rules.compose(red, parts, weights), rules.vertex_scores(red, parts)
wrong = certificate.worst_weights(scores, corners, weights, judged.radius + 1e-4)
print("answers", judged.predicted.tolist(), "under attack", evaluation.predict(red, parts, wrong).tolist())

# %% The same under random mistakes of the router.
for kind in noise.NOISES.values():
    noisy = noise.noisy_weights(red, parts, kind, 1.0, generator(0, "example", kind.name))
    share = (evaluation.predict(red, parts, noisy) == parts.labels).double().mean()
    print(f"{kind.name:<8} level 1: accuracy {share:.2f}")
