"""Short texts for the benchmark: the queries of CLINC150 where they lie on this machine, otherwise made-up ones."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from redx.io.cache import cache_folder
from redx.io.reading import is_file, read_json
from redx.seeding import generator
from redx.tasks.intents.loading import FOLDER, QUERIES, VARIABLE

SAYINGS = (
    "how do i pay my bill what is the weather like in paris tomorrow please book table for two at seven set an alarm "
    "play some music transfer money from savings to checking where did you put list of things buy this week"
)
WORDS = SAYINGS.split()


def short_texts(count: int, seed: int = 0) -> tuple[list[str], str]:
    """Return distinct short texts, and one word on where they come from."""
    folders = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    for folder in (*folders, cache_folder()):
        if is_file(file := folder / FOLDER / QUERIES):
            queries = list(dict.fromkeys(text for text, _ in read_json(file, dict)["train"]))
            if count <= len(queries):
                order = torch.randperm(len(queries), generator=generator(seed, "bench texts"))[:count]
                return [queries[index] for index in order.tolist()], "CLINC150"
    return made_up_texts(count, seed), "made up"


def made_up_texts(count: int, seed: int = 0) -> list[str]:
    """Return distinct texts of 3 to 15 words."""
    draw = generator(seed, "bench texts")
    texts: dict[str, None] = {}
    while len(texts) < count:
        length = int(torch.randint(3, 16, (1,), generator=draw))
        words = torch.randint(len(WORDS), (length,), generator=draw).tolist()
        texts[" ".join(WORDS[index] for index in words)] = None
    return list(texts)
