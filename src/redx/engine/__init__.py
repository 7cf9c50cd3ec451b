"""Where the work of a run is done: in this process, or in the worker processes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redx.engine.calls import Call as Call
from redx.engine.calls import Engine as Engine
from redx.engine.calls import LocalEngine as LocalEngine
from redx.engine.calls import Plan as Plan
from redx.errors import RedxError

ENGINES = ("local", "ray")


@contextmanager
def open_engine(name: str = "local", address: str | None = None, cuda: bool = False) -> Iterator[Engine]:
    """Open an engine inside a `with` block.

    Parameters
    ----------
    name
        `local` works in this process, `ray` in the workers of a Ray cluster.
    address
        Address of a Ray cluster: `auto` for the one of this machine, or HOST:PORT. Without one, Ray is started on this
        machine and stopped at the end; inside `ray job submit` it is the cluster of the job.
    cuda
        Whether tasks need a CUDA device.

    Yields
    ------
    Engine
        The engine, ready to work.
    """
    if name == "ray":
        from redx.engine.ray_engine import RayEngine

        with RayEngine.open(address, cuda) as engine:
            yield engine
        return
    if name != "local":
        raise RedxError(f"There is no engine {name!r}; choose one of {', '.join(ENGINES)}.")
    if address is not None:
        raise RedxError("An address is that of a Ray cluster; add --engine ray or leave out --address.")
    if cuda:
        import torch

        if not torch.cuda.is_available():
            raise RedxError("There is no CUDA device here; leave out --device or choose --device cpu.")
    yield LocalEngine()
