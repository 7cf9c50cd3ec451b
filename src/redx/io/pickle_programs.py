"""What the pickle of a `.pt` file would call, read without running it: a few bytes can ask for any amount of memory.

`torch.load(weights_only=True)` calls only functions that run no code of the file; but among them are `bytearray(n)`,
and functions that copy a list or a tensor again and again.
"""

from __future__ import annotations

import pickletools

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
