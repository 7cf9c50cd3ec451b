"""How many texts have to go through the frozen blocks of a language model, with and without kept features."""

from __future__ import annotations

from redx.config import ModelConfig
from redx.data.dataset import Data
from redx.data.text import unpack_texts


def count_passes(config: ModelConfig, data: Data) -> dict[str, int]:
    """Return how many texts go through the frozen part, and how many would without kept features.

    A loop on raw text sends every example of every epoch through the frozen blocks: base on the shared subset, one bank
    of experts, router, and once validation and test.

    Parameters
    ----------
    config
        Settings of the run, which give the epochs.
    data
        The three splits; inputs are texts.

    Returns
    -------
    dict
        Numbers of passes of the two ways.
    """
    texts = [text for split in (data.train, data.validation, data.test) for text in unpack_texts(split.inputs)]
    banks = [bank for bank in config.banks.values() if bank.experts_of is None]
    epochs = [bank.training.epochs if bank.fit == "gradient" else 1 for bank in banks]
    loop = config.base.training.epochs * round(config.base.share * len(data.train))
    loop += (max(epochs) + config.router.training.epochs) * len(data.train)
    return {"here, each distinct text once": len(set(texts)), "a loop on raw text": loop + len(texts) - len(data.train)}
