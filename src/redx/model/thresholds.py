"""What the owner of a domain sends to calibrate a model where the examples are, and the model that it is sent for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from redx.composition.owners import ADVICE, OwnerFile, own_thresholds
from redx.data.dataset import Split
from redx.data.rows import hash_rows
from redx.errors import RedxError
from redx.io.hashing import hash_tensors

if TYPE_CHECKING:
    from redx.model.model import Model

log = logging.getLogger("redx")


def composed_hash(model: Model) -> str:
    """Return a hash of everything that thresholds follow from: backbone, base, experts, quarantine, score.

    Neither the router nor the risk is among it, which the integrator may change.
    """
    control, library = model.current_control(), model.experts
    tensors = {f"base.{name}": value for name, value in model.base.tensors().items()}
    main = model.config.controlled_bank
    assert main is not None
    words: list[Any] = [
        control.score,
        str(control.answers),
        str(library.weight),
        *model.classes,
        model.config.banks[main],
    ]
    words += [model.config.ownership, *_domains(model)]
    words += [(name, value) for name, value in sorted(library.fingerprint.items()) if name != "probe"]  # with rounding
    if (head := library.head) is not None:
        tensors["head"] = head.weight.cpu()
        words += [head.map.settings(), head.classes, head.missing]
    out = control.quarantined
    for place, expert in enumerate(library):
        words.append(
            (expert.name, expert.info.get("classes"), expert.new_classes, out is not None and bool(out[place]))
        )
        words.append(hash_tensors(expert.tensors()))
    return hash_tensors(tensors, *map(repr, words))


def _domains(model: Model) -> tuple[list[int], list[str]]:
    """Return the domain of every class, and the names of the domains, or refuse a model whose labels name none."""
    domains, names = model._class_domains()
    if domains is None:
        raise RedxError(
            "Some classes belong to several domains or to none, so labels do not name the domain of their owner; "
            "calibrate this model where all examples are, with `redx calibrate RUN --by all`."
        )
    return domains, names


def measure_own(
    model: Model, split: Split, seed: int | None = None, others: Mapping[str, Split] | None = None
) -> OwnerFile:
    """Return the thresholds of an owner's examples, which nothing was trained or chosen on.

    Parameters
    ----------
    model
        The composed model.
    split
        The examples as features, with labels.
    seed
        Seed of the run that the model is from.
    others
        Examples that are not to be among them, by what messages call them, beside those that the model knows.
    """
    _domains(model)
    named = {"base": model.experts.fingerprint["base weights"], "model": composed_hash(model), "seed": seed}
    warn_of_known_rows(model, split, others)
    return own_thresholds(model.measure(split), **named, experts=model.experts.names)


def check_owner_files(model: Model, sent: Mapping[str, OwnerFile], seed: int | None = None) -> None:
    """Refuse thresholds that were computed with another model than this one.

    Parameters
    ----------
    model
        The model that they are for.
    sent
        What owners send, by the name of the file.
    seed
        Seed of the run that the model is from.
    """
    base, now = model.experts.fingerprint["base weights"], composed_hash(model)
    for file, one in sent.items():
        if one.base != base:
            other = f", of seed {one.seed}" if seed is not None and one.seed not in (None, seed) else ""
            raise RedxError(f"{file} was made with the model of another run{other}, not with this one; {ADVICE}.")
        if one.model != now:
            gone = sorted(set(one.experts) ^ set(model.experts.names))
            what = f" (there: {', '.join(one.experts)[:200]})" if gone else ""
            raise RedxError(
                f"{file} was made with another state of this model: its experts{what}, their statistics, the "
                f"quarantine or the backbone differ; {ADVICE}."
            )


def warn_of_known_rows(model: Model, split: Split, others: Mapping[str, Split] | None = None) -> None:
    """Warn where examples that calibrate are among those that an expert was trained on, or choices were made on.

    Hashes of rows tell it, where experts carry some, as those of `redx experts train` do.

    Parameters
    ----------
    model
        The composed model.
    split
        The examples as features.
    others
        Further examples that they are compared with, by what messages call them.
    """
    salt = model.experts.fingerprint["base weights"]
    hashes = hash_rows(split.inputs, salt)
    known = {f"of expert {expert.name!r}": expert.tensors("rows").get("hashes") for expert in model.experts}
    for name, read in {"that are shared": model.anchor_data, "for choices": model.choices}.items():
        known[name] = None if read is None else hash_rows(read().inputs, salt)
    known |= {name: hash_rows(other.inputs, salt) for name, other in (others or {}).items()}
    for name, rows in known.items():
        count = 0 if rows is None else int(torch.isin(hashes, rows).sum())
        if count:
            log.warning(
                "%d of the %d examples are among those %s: the promise needs examples that nothing was trained or "
                "chosen on, so leave them out",
                count,
                len(split),
                name,
            )
