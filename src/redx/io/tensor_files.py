"""What is inside a file, found without running anything in it: safetensors, `.pt`, arrays, JSON, folders."""

from __future__ import annotations

import math
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor


CHECKPOINT_KEY = "redx.checkpoint"  # the key of a checkpoint's facts in the metadata of its file


JSON_BYTES, PROGRAM_BYTES, DEPTH = 64 * 2**20, 64 * 2**20, 8  # of a JSON file, of a pickle's program, of nested dicts


STATES = ("state_dict", "model_state_dict", "model")  # under which a `.pt` holds its tensors


TRAINING = re.compile(r"(optimi[sz]er|(lr_)?scheduler|(grad|amp)_scaler|(\w+_)?rng_state)\w*")  # for more training


DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"}


DTYPES |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: what its header says."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def real(self) -> bool:
        """Whether it holds numbers that can be trained."""
        return "float" in self.dtype


@dataclass(frozen=True)
class TensorSource:
    """The tensors of an open file, each read when it is asked for."""

    entries: dict[str, TensorEntry]
    get: Callable[[str], Tensor]
    about: dict[str, Any] = field(default_factory=dict)  # the file's metadata, or what a `.pt` holds beside tensors
    left_out: list[str] = field(default_factory=list)  # states of optimisers and the like


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorSource]:
    """The tensors of a safetensors or `.pt` file; what could run code, or unpack to more than it is, is refused."""
    form = file_form(path)
    if form == "safetensors":
        with _opened_safetensors(path) as source:
            yield source
    elif form == "zip":
        yield _read_pt(path)
    else:
        raise RedxError(f"{path} holds no tensors ({form}); give a .safetensors or a .pt file.")


def file_form(path: Path) -> str:
    """The kind of a file by its first bytes, whatever its name says."""
    try:
        if path.is_dir():
            return "folder"
        with path.open("rb") as file:
            head = file.read(16)
    except FileNotFoundError as error:
        raise RedxError(f"There is no {path}; give a file, or the folder of a run.") from error
    except OSError as error:
        raise RedxError(f"{path} cannot be read ({error.strerror}); fix its permissions.") from error
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        return "safetensors"
    if head[:4] == b"PK\3\4":
        return "zip"
    if head[:6] == b"\x93NUMPY":
        return "array"
    if head[:1] == b"\x80" or path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"):
        raise RedxError(
            f"{path} is a bare pickle or truncated, and unpickling runs whatever code is in it; "
            "save it anew with torch.save or as safetensors where you trust it."
        )
    return "JSON" if head.lstrip()[:1] in (b"{", b"[") else "unknown"


@contextmanager
def _opened_safetensors(path: Path) -> Iterator[TensorSource]:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, "pt")
        entries = {name: _entry(name, file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise RedxError(f"{path} is truncated or no safetensors file; take it anew from where it came.") from error
    with file:
        check_tensor_names(path, entries)
        yield TensorSource(entries, file.get_tensor, dict(file.metadata() or {}))


def _entry(name: str, piece: Any) -> TensorEntry:
    shape, code = tuple(piece.get_shape()), str(piece.get_dtype())
    bits = int((re.findall(r"\d+", code) or [8])[0])
    return TensorEntry(name, shape, DTYPES.get(code, code.lower()), math.ceil(math.prod(shape) * bits / 8))


def check_tensor_names(path: Path, names: Mapping[str, Any] | list[str]) -> None:
    """Refuse names that lead out of a folder, or that a terminal would obey."""
    for name in names:
        if not name.isprintable() or not is_safe_path(name.replace(":", "/")):
            raise RedxError(f"{path} has a path or a hidden sign in the name {name[:80]!a}; nothing is read from it.")


def is_safe_path(name: str) -> bool:
    """Whether a name with `/` stays inside the folder that it is put into."""
    place = PurePosixPath(name)
    return (
        name.isprintable() and bool(name) and not place.is_absolute() and ".." not in place.parts and "\\" not in name
    )


def _read_pt(path: Path) -> TensorSource:
    """The tensors of a `.pt`, still on disk, read with the loader that knows tensors and plain values alone."""
    import torch

    _check_zip(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        strange = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"{strange[1]}, " if strange else ""
        raise RedxError(
            f"{path} holds more than tensors and plain values ({what}which loading would run); "
            "save its state_dict alone, where you trust it."
        ) from error
    except Exception as error:  # torch has no error of its own for a damaged file
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise RedxError(f"{path} cannot be read ({why}); take it anew from where it came.") from error
    tensors, about, left_out = _flatten(path, loaded)
    check_tensor_names(path, tensors)
    size, total = path.stat().st_size, 0
    entries = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise RedxError(
                f"{name} in {path} is no plain tensor (sparse, quantised or without values); save it dense."
            )
        entry = TensorEntry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.nbytes)
        total += entry.bytes
        # a few bytes on disk can be spread over any shape, or be named any number of times
        if entry.bytes > tensor.untyped_storage().nbytes() or total > 2 * size:
            raise RedxError(f"{name} in {path} unpacks to more than is in the file; nothing is read from it.")
        entries[name] = entry
    return TensorSource(entries, tensors.__getitem__, about, left_out)


def _check_zip(path: Path) -> None:
    """Refuse an archive that is not as torch.save writes it: nothing packed, nothing twice, no paths."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, OverflowError) as error:
        raise RedxError(f"{path} is truncated or a damaged archive; take it anew from where it came.") from error
    check_tensor_names(path, [member.filename for member in members])
    packed = [member for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed or sum(member.file_size for member in members) > path.stat().st_size:
        raise RedxError(f"{path} unpacks to more than it is (a zip bomb?), which no .pt does; nothing is read from it.")
    names = [member.filename for member in members]
    programs = [member for member in members if PurePosixPath(member.filename).name == "data.pkl"]
    if len(set(names)) < len(names) or len(programs) != 1 or any("/code/" in name for name in names):
        raise RedxError(
            f"{path} is an archive, but none of tensors as torch.save writes it; give a .pt of a state_dict."
        )
    if programs[0].file_size > PROGRAM_BYTES:
        raise RedxError(f"{path} holds more than a list of tensors; save its state_dict alone.")


def _flatten(path: Path, loaded: object) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Tensors by name, plain values beside them, and what is of use to further training alone."""
    from torch import Tensor

    tensors: dict[str, Tensor] = {}
    about: dict[str, Any] = {}
    left_out: list[str] = []

    def walk(value: object, name: str, depth: int) -> None:
        if isinstance(value, Tensor):
            if name in tensors:
                raise RedxError(f"{path} has two tensors by the name of {name}; save its state_dict alone.")
            tensors[name] = value.detach()
        elif _plain(value, DEPTH):
            about[name] = value
        elif isinstance(value, Mapping) and depth < DEPTH and all(isinstance(key, str) for key in value):
            for key, each in value.items():
                if depth == 0 and TRAINING.fullmatch(key):
                    left_out.append(key)
                    continue
                inner = "" if depth == 0 and key in STATES else key.removesuffix("_state_dict")
                walk(each, ".".join(word for word in (name, inner) if word), depth + 1)
        else:
            raise RedxError(
                f"{path} holds {name or 'something'} of type {type(value).__name__}, which redx does not know; "
                "save a dict of tensors, such as a state_dict."
            )

    walk(loaded, "", 0)
    if not tensors:
        raise RedxError(f"{path} holds no tensors; give a .pt of a state_dict.")
    return tensors, about, left_out


def _plain(value: object, depth: int) -> bool:
    """Whether a value is of the kinds that JSON knows."""
    if depth == 0:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(each, depth - 1) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(_plain(each, depth - 1) for each in value)
    return value is None or isinstance(value, bool | int | float | str)
