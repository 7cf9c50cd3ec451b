"""The Ray engine: every call is a Ray task, which is repeated elsewhere if its worker or node is lost.

Tasks write the same files into the run folder as the local engine, so the run folder must be visible to all nodes.
Large tensors travel through Ray's object store and are read from it without a copy.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import signal
import socket
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.engine import probe
from redx.engine.calls import Call, Plan, Report, perform_elsewhere
from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.io.progress import progress

log = logging.getLogger("redx")

RETRIES = 5  # times that a task is started again after its worker or node was lost
ENVIRONMENT = ("REDX_CACHE", "REDX_DATA", "ONEDNN_MAX_CPU_ISA")  # variables that workers take over from this process
RESUME = "the same command continues where it stopped"
SECONDS = 5.0  # to wait for an answer of the cluster's port
SETTINGS = 4  # type of the frame that a server of HTTP/2 sends first
STORE = 2**30  # bytes of the object store of a Ray that is started here; what does not fit goes to disk
ADVICE = "start one with `ray start --head`, or leave out --address to start Ray here"


def perform(
    function: Any, environment: dict[str, str], folder: str, threads: int, *arguments: Any
) -> tuple[Any, Report]:
    """Do a task: call a function as the process that asks would, in its environment, folder and number of threads."""
    os.environ.update(environment)
    with suppress(OSError):  # relative paths in settings mean the same as there, where the folder is shared
        os.chdir(folder)
    torch.set_num_threads(threads)
    register_tensors()
    return perform_elsewhere(function, arguments)


@dataclass
class RayEngine:
    """Follows plans at the same time; every call is a task of a Ray cluster.

    Attributes
    ----------
    cuda
        Whether calls that compute on a CUDA device reserve one.
    processors
        CPUs of the largest node, which limits what a task can reserve.
    runs_at_once
        Number of runs of a sweep whose data are loaded at the same time.
    """

    cuda: bool
    processors: int
    runs_at_once: int = 8
    _waiting: dict[Any, _Place] = field(default_factory=dict)

    @staticmethod
    @contextmanager
    def open(address: str | None, cuda: bool) -> Iterator[RayEngine]:
        """Connect to a cluster, or start Ray on this machine, inside a `with` block."""
        try:
            import ray
        except ImportError as error:
            raise RedxError("The engine `ray` needs Ray; install it with `pip install 'redx[cluster]'`.") from error
        is_ours = not ray.is_initialized()
        if is_ours:
            address = check_address(address)
            with _our_signals():
                connect(address)
        try:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            if cuda and not any(resources.get("GPU") for resources in nodes):
                raise RedxError("The cluster has no GPU; leave out --device or add a node that has one.")
            register_tensors()
            yield RayEngine(cuda, max(1, *(int(resources.get("CPU", 0)) for resources in nodes)))
        finally:
            if is_ours:
                ray.shutdown()

    def share(self, value: Any) -> Any:
        import ray

        return ray.put(value)

    def check_folders(self, folders: Iterable[Path]) -> None:
        """Ask every node whether it sees these folders, and whether it has the same software."""
        files = {
            folder.absolute() / f".probe.json.{secrets.token_hex(4)}.tmp": secrets.token_hex(16) for folder in folders
        }
        try:
            for path, content in files.items():
                write_bytes(path, content.encode())
            workers = _ask_nodes({str(path): content for path, content in files.items()})
        finally:
            for path in files:
                path.unlink(missing_ok=True)
        for worker in workers:
            _check_worker(worker)

    def follow(self, plans: Iterable[Plan[Any]]) -> list[Any]:
        import ray

        going = [_Progress(plan) for plan in plans]
        try:
            with progress("tasks on Ray") as advance:
                for running in going:
                    self._submit(running, running.start())
                while self._waiting:
                    (ready,), _ = ray.wait(list(self._waiting), num_returns=1)
                    place = self._waiting.pop(ready)
                    place.running.results[place.index] = self._collect(ready, place)
                    advance(1)
                    if not place.running.is_waiting():
                        self._submit(place.running, place.running.proceed())
        finally:
            self._cancel()
            for running in going:
                running.plan.close()
        return [running.result for running in going]

    def _submit(self, running: _Progress, calls: list[Call]) -> None:
        """Start the next calls of a plan as tasks."""
        import ray

        while not calls and not running.is_finished:  # a plan may yield no calls
            running.results = []
            calls = running.proceed()
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        threads = torch.get_num_threads()
        task: Any = ray.remote(num_cpus=min(threads, self.processors), num_returns=2, max_retries=RETRIES)(perform)
        running.results = [...] * len(calls)
        for index, call in enumerate(calls):
            placed = task.options(num_gpus=1) if self.cuda and call.cuda else task
            value, report = placed.remote(call.function, environment, os.getcwd(), threads, *call.arguments)
            self._waiting[report] = _Place(running, index, call, value)

    def _collect(self, ready: Any, place: _Place) -> Any:
        """Return the result of a finished task, or a handle to it, after its messages were logged."""
        import ray
        from ray import exceptions

        try:
            report: Report = ray.get(ready)
            result = place.value if place.call.keep else ray.get(place.value)
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, RedxError):
                raise RedxError(str(cause)) from error
            if isinstance(cause, ImportError):
                raise RedxError(
                    f"A worker cannot import {cause.name}; install the same redx with its extras on every node."
                ) from error
            raise
        except exceptions.RayError as error:
            reason = " ".join(str(error).splitlines()[0].split())[:200]
            raise RedxError(f"A task was lost {RETRIES + 1} times ({reason}); {RESUME}.") from error
        for message in report.messages:
            log.info("%s", message)
        place.call.finished(report.seconds)
        return result

    def _cancel(self) -> None:
        """Stop the tasks that nobody waits for any more."""
        import ray

        for reference in self._waiting:
            with suppress(Exception):  # the cluster may be gone
                ray.cancel(reference, force=True)
        self._waiting.clear()


class _Progress:
    """A plan, and the results of the calls that it waits for."""

    def __init__(self, plan: Plan[Any]) -> None:
        self.plan, self.results = plan, list[Any]()
        self.result: Any = None
        self.is_finished = False

    def is_waiting(self) -> bool:
        return any(result is ... for result in self.results)

    def start(self) -> list[Call]:
        return self._advance(None)

    def proceed(self) -> list[Call]:
        return self._advance(self.results)

    def _advance(self, results: list[Any] | None) -> list[Call]:
        """Return the next calls of the plan; none at its end."""
        try:
            return list(next(self.plan) if results is None else self.plan.send(results))
        except StopIteration as stop:
            self.result, self.is_finished = stop.value, True
            return []


@dataclass(frozen=True)
class _Place:
    """A task: the plan and the call that it belongs to, and the handle of its result."""

    running: _Progress
    index: int
    call: Call
    value: Any


@contextmanager
def _our_signals() -> Iterator[None]:
    """Keep the handlers of signals, which Ray replaces when it starts."""
    kept = {}
    with suppress(ValueError):  # signals belong to the main thread
        kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            with suppress(ValueError, TypeError):
                signal.signal(number, handler)


def _ask_nodes(files: dict[str, str]) -> list[dict[str, str]]:
    """Return what a task on every node says about its worker."""
    import ray
    from ray import cloudpickle, exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cloudpickle.register_pickle_by_value(probe)
    try:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        ask: Any = ray.remote(num_cpus=0)(probe.describe_worker)
        tasks = [
            ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(files)
            for node in nodes
        ]
        if not tasks:
            raise RedxError("The cluster has no node with CPUs; start one with `ray start`.")
        return ray.get(tasks)
    except exceptions.RayError as error:
        reason = " ".join(str(error).splitlines()[0].split())[:200]
        raise RedxError(f"A node of the cluster does not run tasks ({reason}); repair it and repeat.") from error
    finally:
        cloudpickle.unregister_pickle_by_value(probe)


def _check_worker(worker: dict[str, str]) -> None:
    """Refuse a worker that lacks redx, has other versions, or cannot see the folders."""
    host, version = worker["host"], importlib.import_module("redx").__version__
    if "missing" in worker:
        raise RedxError(
            f"The worker on {host} cannot import {worker['missing']}; install redx {version} with the extra "
            "`cluster` on every node."
        )
    ours = {"redx": version, "torch": torch.__version__}
    for package, expected in ours.items():
        if worker[package] != expected:
            raise RedxError(
                f"The worker on {host} has {package} {worker[package]} and this process {expected}, so figures could "
                "differ; install the same versions on every node."
            )
    if "unseen" in worker:
        raise RedxError(
            f"The worker on {host} cannot read and write {worker['unseen']}; choose a folder on storage that all nodes "
            "share, with --out for the run and REDX_CACHE for the cache."
        )
    if worker["processor"] != torch.backends.cpu.get_cpu_capability():
        log.warning("the processor of %s differs from this one; figures may differ in their last digits", host)


# --- tensors in Ray's object store


def register_tensors() -> None:
    """Let Ray store the tensors of this process as arrays; otherwise each would be copied three times."""
    import ray.util

    ray.util.register_serializer(Tensor, serializer=to_array, deserializer=to_tensor)


def to_array(tensor: Tensor) -> tuple[Any, torch.dtype]:
    """Return a tensor as an array and its type; types that numpy lacks become bytes of the same size."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype in (torch.bfloat16,):
        return tensor.view(torch.int16).numpy(), tensor.dtype
    return tensor.numpy(), tensor.dtype


def to_tensor(stored: tuple[Any, torch.dtype]) -> Tensor:
    """Return the tensor that `to_array` described; it must not be written to, for it lies in shared memory."""
    array, dtype = stored
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


# --- the cluster


def check_address(address: str | None) -> str | None:
    """Return the address of a cluster, None for no cluster, or raise `RedxError` where nothing answers.

    Parameters
    ----------
    address
        `auto`, HOST:PORT, or None for what RAY_ADDRESS says, which `ray job submit` sets.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address in (None, "auto"):
        return address
    if "://" in address:
        raise RedxError(
            f"{address} is an address of Ray's client; run the command on the cluster with `ray job submit` instead."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise RedxError(f"{address!r} is no address of a Ray cluster; write auto or HOST:PORT.")
    try:
        with socket.create_connection((host, int(port)), SECONDS) as connection:
            is_ray = os.environ.get("RAY_USE_TLS", "0") != "0" or _answers_grpc(connection)
    except OSError as error:
        raise RedxError(f"No Ray cluster answers at {address} ({error.strerror or error}); {ADVICE}.") from error
    if not is_ray:
        raise RedxError(f"No Ray cluster answers at {address} (something else does); {ADVICE}.")
    return address


def _answers_grpc(connection: socket.socket) -> bool:
    """Return whether a port answers like a gRPC server; Ray itself would wait for minutes at one that does not."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
    header = connection.recv(9)
    return len(header) > 3 and header[3] == SETTINGS


def connect(address: str | None) -> None:
    """Connect this process to a cluster; without an address, start Ray on this machine, on loopback alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    import ray

    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            ray.init("local", include_dashboard=False, object_store_memory=STORE, _node_ip_address="127.0.0.1", **quiet)
        else:
            ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:160]
        if address is None:
            raise RedxError(f"Ray does not start on this machine ({reason}); use --engine local.") from error
        raise RedxError(f"No Ray cluster answers at {address} ({reason}); {ADVICE}.") from error
