"""Tensors of safetensors and `.pt` files, read without running any code that a file contains."""

from __future__ import annotations

import math
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError
from redx.io.reading import TENSOR_BYTES, guarded, is_folder, open_file
from redx.io.safetensors_files import open_safetensors, tensor_bytes

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT_KEY = "redx.checkpoint"  # key of the facts about a checkpoint in the metadata of its file
PROGRAM_BYTES, DEPTH, MEMBERS = 8 * 2**20, 8, 100_000  # limits: program of a pickle, nested dicts, archive
PLAIN_BYTES = 16 * 2**20  # of the plain values in a `.pt` file, when they are written out
STATES = ("state_dict", "model_state_dict", "model")  # keys under which a `.pt` file may store its tensors
TRAINING = re.compile(r"(optimi[sz]er|(lr_)?scheduler|(grad|amp)_scaler|(\w+_)?rng_state)\w*")  # keys that are skipped
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"}
NAMES |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}
# functions that allocate nothing: they view what is in the file, and values are read later
VIEWS = {
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_tensor_v3",
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_sparse_tensor",
    "_rebuild_qtensor",
    "_rebuild_meta_tensor_no_storage",
    "_rebuild_nested_tensor",
    "_rebuild_from_type_v2",
}
# functions that copy what they are given
COPIES = ("Counter", "set", "Size", "complex", "encode", "OrderedDict", "Tensor", "UntypedStorage", "TypedStorage")
MAX_COPIES = 16
PUTS, GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}


@dataclass(frozen=True)
class TensorEntry:
    """The header of one tensor in a file.

    Attributes
    ----------
    name, shape, dtype
        Name of the tensor, its shape, and its type as PyTorch writes it, such as `float32`.
    bytes
        Size of its values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def numbers(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def real(self) -> bool:
        """Whether the values are floating-point numbers, which can be trained."""
        return "float" in self.dtype


@dataclass(frozen=True)
class TensorSource:
    """The tensors of an open file.

    Attributes
    ----------
    entries
        Headers by name.
    get
        Reads a tensor by name.
    about
        Metadata of a safetensors file, or the plain values in a `.pt` file.
    left_out
        Keys of a `.pt` file that are skipped, such as the state of an optimiser.
    """

    entries: dict[str, TensorEntry]
    get: Callable[[str], Tensor]
    about: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorSource]:
    """Open a safetensors or `.pt` file inside a `with` block.

    Parameters
    ----------
    path
        The file. Its format is recognised by its content.

    Yields
    ------
    TensorSource
        The tensors; values are read from disk when they are needed.

    Raises
    ------
    RedxError
        If the file is damaged, contains no tensors, could run code, or unpacks to more than its own size.
    """
    form = file_form(path)
    if form == "safetensors":
        with _open_safetensors(path) as source:
            yield source
    elif form == "zip":
        yield _read_pt(path)
    else:
        raise RedxError(f"{path} contains no tensors ({form}); give a .safetensors or a .pt file.")


def file_form(path: Path) -> str:
    """Return the format of a file, by its first bytes more than by its name.

    Parameters
    ----------
    path
        A file or a folder.

    Returns
    -------
    str
        `folder`, `safetensors`, `zip` (such as a `.pt` file), `array`, `JSON` or `unknown`.

    Raises
    ------
    RedxError
        If the file does not exist, cannot be read, or is a bare pickle.
    """
    if is_folder(path):
        return "folder"
    with open_file(path, TENSOR_BYTES, advice="give a file, or the folder of a run") as (file, _):
        head = file.read(16)
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        return "safetensors"
    if head[:4] == b"PK\3\4":
        return "zip"
    if head[:6] == b"\x93NUMPY":
        return "array"
    if head[:1] == b"\x80" or path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"):
        raise RedxError(
            f"{path} is a bare pickle or truncated, and unpickling runs the code that it contains; "
            "if you trust it, save it again with torch.save or as safetensors."
        )
    return "JSON" if head.lstrip()[:1] in (b"{", b"[") else "unknown"


@contextmanager
def _open_safetensors(path: Path) -> Iterator[TensorSource]:
    with open_safetensors(path, advice="copy it again from its source") as file:
        entries = {
            name: TensorEntry(name, shape, NAMES.get(dtype, dtype.lower()), tensor_bytes(dtype, shape))
            for name, (dtype, shape) in file.header.items()
        }
        check_tensor_names(path, entries)
        yield TensorSource(entries, file.get, dict(file.metadata))


def check_tensor_names(path: Path, names: Mapping[str, Any] | list[str]) -> None:
    """Raise `RedxError` if a name could leave a folder or contains characters that control a terminal."""
    for name in names:
        if not name.isprintable() or not is_safe_path(name.replace(":", "/")):
            raise RedxError(
                f"{path} has a path or a non-printable character in the name {name[:80]!a}; redx does not read it."
            )


def is_safe_path(name: str) -> bool:
    """Return whether a relative path, with `/` between its parts, stays inside the folder that it is relative to."""
    path = PurePosixPath(name)
    return name.isprintable() and bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _read_pt(path: Path) -> TensorSource:
    """Return the tensors of a `.pt` file as memory maps; the loader accepts only tensors and plain values."""
    import torch

    _check_zip(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        function = re.search(r"GLOBAL ([\w.]+)", str(error))
        name = f"{function[1]}, " if function else ""
        raise RedxError(
            f"{path} contains more than tensors and plain values ({name}which loading would run); "
            "if you trust it, save only its state_dict."
        ) from error
    except Exception as error:  # torch raises errors of many types for a damaged file
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise RedxError(f"{path} cannot be read ({reason}); copy it again from its source.") from error
    with guarded(path, "is damaged", "copy it again from its source"):
        return _describe(path, loaded)


def _describe(path: Path, loaded: object) -> TensorSource:
    """Return the tensors of a loaded `.pt` file, after checking that none is larger than what the file holds of it."""
    import torch

    tensors, about, left_out = _flatten(path, loaded)
    check_tensor_names(path, tensors)
    size, total = path.stat().st_size, 0
    entries = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise RedxError(
                f"{name} in {path} is no plain tensor (sparse, quantised or without values); save a dense tensor."
            )
        entry = TensorEntry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.nbytes)
        total += entry.bytes
        # a few bytes on disk can be expanded to any shape, or belong to any number of names
        if entry.bytes > tensor.untyped_storage().nbytes() or total > 2 * size:
            raise RedxError(f"{name} in {path} unpacks to more than is in the file; redx does not read it.")
        entries[name] = entry
    return TensorSource(entries, tensors.__getitem__, about, left_out)


def _check_zip(path: Path) -> None:
    """Raise `RedxError` for an archive that torch.save does not write: compressed, with repeated names or paths."""
    with guarded(path, "is truncated or a damaged archive", "copy it again from its source"):
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        if len(members) > MEMBERS:
            raise ValueError("far too many members")
    check_tensor_names(path, [member.filename for member in members])
    compressed = [member for member in members if member.compress_type != zipfile.ZIP_STORED]
    if compressed or sum(member.file_size for member in members) > path.stat().st_size:
        raise RedxError(
            f"{path} unpacks to more than its size (a zip bomb?), unlike any .pt file; redx does not read it."
        )
    names = [member.filename for member in members]
    programs = [member for member in members if PurePosixPath(member.filename).name == "data.pkl"]
    if len(set(names)) < len(names) or len(programs) != 1 or any("/code/" in name for name in names):
        raise RedxError(f"{path} is an archive, but not one that torch.save writes; give a .pt file of a state_dict.")
    if programs[0].file_size > PROGRAM_BYTES:
        raise RedxError(f"{path} contains more than a list of tensors; save only its state_dict.")
    with guarded(path, "is damaged", "copy it again from its source"), zipfile.ZipFile(path) as archive:
        program = archive.read(programs[0])
    try:
        check_program(program)
    except Exception as error:  # pickletools raises errors of many types for a damaged program
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise RedxError(f"{path} contains more than a list of tensors ({reason}); save only its state_dict.") from error


def _flatten(path: Path, loaded: object) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Return tensors by name, plain values by name, and the skipped keys, such as the state of an optimiser."""
    from torch import Tensor

    tensors: dict[str, Tensor] = {}
    about: dict[str, Any] = {}
    left_out: list[str] = []
    is_plain = _Plain(path, PLAIN_BYTES)

    def walk(value: object, name: str, depth: int) -> None:
        if isinstance(value, Tensor):
            if name in tensors:
                raise RedxError(f"{path} has two tensors of the name {name}; save only its state_dict.")
            tensors[name] = value.detach()
        elif is_plain(value, DEPTH):
            about[name] = value
        elif isinstance(value, Mapping) and depth < DEPTH and all(isinstance(key, str) for key in value):
            for key, inner in value.items():
                if depth == 0 and TRAINING.fullmatch(key):
                    left_out.append(key)
                    continue
                step = "" if depth == 0 and key in STATES else key.removesuffix("_state_dict")
                walk(inner, ".".join(word for word in (name, step) if word), depth + 1)
        else:
            raise RedxError(
                f"{path} contains {name or 'a value'} of type {type(value).__name__}, which redx does not know; "
                "save a dict of tensors, such as a state_dict."
            )

    walk(loaded, "", 0)
    if not tensors:
        raise RedxError(f"{path} contains no tensors; give a .pt file of a state_dict.")
    return tensors, about, left_out


class _Plain:
    """Tells which values have types that JSON knows, until they are more than a file of this kind needs.

    The same list or text can be in a `.pt` file any number of times, at a few bytes each.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.left = path, limit

    def __call__(self, value: object, depth: int) -> bool:
        """Return whether a value is plain, with at most `depth` levels of lists and dicts."""
        if depth == 0:
            return False
        self.left -= 8 + (len(value) if isinstance(value, str) else 0)
        if isinstance(value, int):
            self.left -= value.bit_length() // 3
        if self.left < 0:
            raise RedxError(f"{self.path} contains far more than tensors; save only its state_dict.")
        if isinstance(value, dict):
            return all(isinstance(key, str) and self(key, 1) and self(inner, depth - 1) for key, inner in value.items())
        if isinstance(value, list | tuple):
            return all(self(inner, depth - 1) for inner in value)
        return value is None or isinstance(value, bool | int | float | str)


# --- what the pickle of a `.pt` file would call, read without running it: a few bytes can ask for any amount of memory
#
# `torch.load(weights_only=True)` calls only functions that run no code of the file; but among them are `bytearray(n)`,
# and functions that copy a list or a tensor again and again.


def check_program(program: bytes, max_copies: int = MAX_COPIES) -> None:
    """Raise a ValueError that says which function of a pickle could fill the memory.

    Parameters
    ----------
    program
        The pickle.
    max_copies
        Largest number of calls that copy their arguments; a new and empty `OrderedDict` is none.
    """
    memo: dict[str, str] = {}  # names of functions, and `text` for a text
    last, copies = "", 0
    for operation, argument, _ in pickletools.genops(program):
        name, value = operation.name, str(argument)
        if name in PUTS:
            memo[value] = last
            continue
        now = memo.get(value, "") if name in GETS else "text" if "UNICODE" in name else ""
        if last.endswith(COPIES) and not _is_harmless(last, name, now):
            copies += 1
            if copies > max_copies:
                raise ValueError(f"calls {last} again and again")
        last = _checked(value) if name == "GLOBAL" else now


def _is_harmless(function: str, after: str, value: str) -> bool:
    """Return whether a new and empty dict follows, or the name of a storage in the file, by the next operation."""
    return (function == "OrderedDict" and after == "EMPTY_TUPLE") or (function.endswith("Storage") and value == "text")


def _checked(name: str) -> str:
    """Return the last word of the name of a function or type, `module name`, or refuse it."""
    word = name.rpartition(" ")[2]
    if word == "bytearray" or (word.startswith("_rebuild") and word not in VIEWS):
        raise ValueError(f"calls {word}")
    return word
