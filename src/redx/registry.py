"""Registries: tasks, rules, noises, routers and backbones by name, open to packages from outside.

A package joins by an entry point of the group `redx.plugins`: a module, which registers what it brings when it is
imported, or a function, which is called without arguments. In Python a call of `register` is enough.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

from redx.errors import RedxError

GROUP = "redx.plugins"
T = TypeVar("T")
_loaded: dict[str, RedxError | None] = {}  # entry points that have been loaded or are being loaded, and why one failed
_all: list[Registry[Any]] = []  # every registry, so that a plugin that fails leaves nothing in any


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name; a mapping that others can add to.

    Looking up a name of redx itself loads no plugin. An unknown name, and a list of all names, loads all of them first.

    Parameters
    ----------
    kind
        What is registered, as it stands in messages, such as `rule`.
    fill
        Registers what redx itself has; it is called at the first look, so that imports stay fast.

    Examples
    --------
    >>> colours: Registry[int] = Registry("colour")
    >>> colours.register("red", 0xFF0000)
    16711680
    >>> colours["red"]
    16711680
    """

    def __init__(self, kind: str, fill: Callable[[], None] | None = None) -> None:
        self.kind = kind
        self._known: dict[str, T] = {}
        self._fill = fill
        _all.append(self)

    @property
    def _entries(self) -> dict[str, T]:
        if self._fill is not None:
            fill, self._fill = self._fill, None  # first, for it registers
            fill()
        return self._known

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...

    @overload
    def register(self, name: str, entry: T) -> T: ...

    def register(self, name: str, entry: Any = None) -> Any:
        """Add an entry under a name; without the entry, return a decorator that adds what it decorates.

        Parameters
        ----------
        name
            The name: small letters, digits and hyphens.
        entry
            What to add.

        Raises
        ------
        RedxError
            Where the name is taken or is no name.
        """
        if entry is None:
            return lambda decorated: self.register(name, decorated)
        if not name.replace("-", "").isalnum() or name != name.lower():
            raise RedxError(f"{name!r} cannot name a {self.kind}; use small letters, digits and hyphens.")
        if self._entries.get(name, entry) is not entry:
            raise RedxError(f"There is a {self.kind} {name!r} already; register yours under another name.")
        self._entries[name] = entry
        return entry

    def unregister(self, name: str) -> T:
        """Remove an entry and return it, as a test or a notebook does that registers it anew."""
        return self._entries.pop(name)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            load_plugins()
        if name not in self._entries:
            raise unknown_name(self.kind, name, list(self._entries))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._entries)

    def __len__(self) -> int:
        load_plugins()
        return len(self._entries)


def unknown_name(kind: str, name: str, known: Sequence[str]) -> RedxError:
    """Return the error for a name that is not known: the known one that it is like, and all of them.

    Parameters
    ----------
    kind
        What is named, as it stands in messages, such as `rule`.
    name
        The name that is not known.
    known
        The names that are known.
    """
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return RedxError(f"There is no {kind} {name!r}{hint}; choose one of {', '.join(known)}.")


def load_plugins() -> None:
    """Import what installed packages bring, each once.

    Raises
    ------
    RedxError
        Where a plugin fails; the message says which package it comes from.
    """
    for point in installed_plugins(tuple(sys.path)):
        key = f"{point.name} = {point.value}"
        if key not in _loaded:
            _loaded[key] = None  # first, for a plugin may look at the registries while it is imported
            _loaded[key] = _load(point)
        if (failure := _loaded[key]) is not None:
            raise failure


@lru_cache(maxsize=8)
def installed_plugins(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of plugins; to find them the metadata of every package on the path are read, once."""
    return tuple(entry_points(group=GROUP))


def _load(point: EntryPoint) -> RedxError | None:
    """Import one plugin; where it fails, take back what it registered and return what is wrong."""
    before = [(one, set(one._entries)) for one in _all]
    try:
        plugin = point.load()
        if not isinstance(plugin, ModuleType):
            plugin()
    except (Exception, SystemExit) as error:
        for one, known in before:
            for name in set(one._entries) - known:
                one.unregister(name)
        lines = str(error).strip().splitlines() or [""]
        kind = "" if isinstance(error, RedxError) else f"{type(error).__name__}: "
        return RedxError(
            f"The plugin {point.name!r}{_package(point)} does not load ({kind}{lines[0].rstrip('.')}); mend or "
            "uninstall it."
        )
    return None


def _package(point: EntryPoint) -> str:
    return f" of the package {point.dist.name!r}" if point.dist else ""
