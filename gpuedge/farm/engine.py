"""All that speaks to Dask: a scheduler, workers with their devices, and the client of a run.

Dask finds out which workers live (heartbeats), gives shards to workers that have the device they
need (resources), and moves those of a worker that died.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import signal
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import FarmError, InputError, UsageError
from gpuedge.core.text import said
from gpuedge.farm import work
from gpuedge.farm.devices import Announcement, Desk, resource
from gpuedge.safety import temporary
from gpuedge.safety.packages import needed
from gpuedge.safety.paths import check_readable

if TYPE_CHECKING:
    from distributed import Client, Future, Security

CONNECT_S = 30.0
"""Time for reaching a scheduler."""

FETCH_S = 15.0
"""Time for fetching a reply from a worker that has it ready."""

TTL = "60s"
"""Dask takes a worker without heartbeat for this long as dead."""

CONFIG: Mapping[str, Any] = {
    "distributed.diagnostics.nvml": False,  # loads a driver into this process
    "distributed.scheduler.worker-ttl": TTL,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": f"{CONNECT_S:g}s",
}

HERE = ("127.0.0.1", "localhost", "::1")
"""Where a scheduler may listen without TLS: whoever reaches it runs what they like on workers."""

NOWHERE = "127.0.0.1:0"
"""Dask's web server, which has no pages here."""


@dataclass(frozen=True)
class Certificates:
    """Files in PEM that both sides of a connection prove themselves with."""

    ca: str
    cert: str
    key: str


def certificates(ca: str | None, cert: str | None, key: str | None) -> Certificates | None:
    """Return the files, or None where none is named.

    Raises UsageError (GE-200) where one is missing, InputError (GE-203) where one cannot be read.
    """
    named = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    missing = [option for option, path in named.items() if not path]
    if len(missing) == len(named):
        return None
    if missing or not (ca and cert and key):
        raise UsageError(
            "TLS needs three files.", asked_by="the command line",
            known=f"missing: {', '.join(missing)}", hint="docs/farm.md says how to make them",
        )  # fmt: skip
    for option, path in named.items():
        check_readable(path or "", "certificate or key", option)
    _load("--tls-ca", "no certificate of an authority", lambda tls: tls.load_verify_locations(ca))
    _load("--tls-key", f"not the key of {cert}", lambda tls: tls.load_cert_chain(cert, key))
    return Certificates(ca, cert, key)


def _load(option: str, what: str, load: Callable[[ssl.SSLContext], object]) -> None:
    try:
        load(ssl.create_default_context())
    except OSError as error:  # as ssl.SSLError is
        raise InputError(
            f"The file is {what}.", asked_by=option, known=str(error),
            hint="docs/farm.md says how to make certificates and keys",
        ) from None  # fmt: skip


def check_address(address: str, files: Certificates | None) -> None:
    """Raise UsageError (GE-200) unless an address is Dask's, with TLS exactly where it says so."""
    protocol, found, place = address.partition("://")
    if not found or protocol not in ("tcp", "tls") or not place.rpartition(":")[2].isdigit():
        raise UsageError(
            f"{address!r} is no scheduler's address.", asked_by="--scheduler",
            hint="tls://HOST:PORT, or tcp://127.0.0.1:PORT",
        )  # fmt: skip
    if (protocol == "tls") != (files is not None):
        raise UsageError(
            "An address with tls:// needs --tls-ca, --tls-cert and --tls-key, another has none.",
            asked_by="--scheduler", known=address,
        )  # fmt: skip


def _security(files: Certificates | None) -> Security | None:
    from distributed import Security

    if files is None:
        return None
    roles = {f"tls_{role}_{kind}": path for role in ("client", "scheduler", "worker")
             for kind, path in (("cert", files.cert), ("key", files.key))}  # fmt: skip
    return Security(require_encryption=True, tls_ca_file=files.ca, **roles)


@contextmanager
def _dask(folder: Path | None = None) -> Iterator[None]:
    """Have Dask imported, with its settings for farms; its own log is for --verbose only.

    Schedulers and workers write into `folder`.
    """
    with needed("distributed", "gpuedge farm"):
        import dask
        import distributed  # noqa: F401
    is_verbose = logging.root.level < logging.WARNING
    for name in ("distributed", "distributed.client"):  # Dask gives the latter its own level
        logging.getLogger(name).setLevel(logging.root.level if is_verbose else logging.CRITICAL)
    with dask.config.set({**CONFIG, "temporary-directory": folder and str(folder)}):
        yield


def worker_options(desk: Desk) -> dict[str, Any]:
    """Return the arguments of Dask's workers that make one of a desk."""
    return {
        "nthreads": len(desk.announcement.devices),
        "resources": desk.announcement.resources(),
        "startup_information": {work.DESK: desk},
        "metrics": {work.DESK: desk.progress},
        "memory_limit": 0,  # cases run in processes of their own
    }


def serve_worker(
    address: str, files: Certificates | None, desk: Desk, ready: Callable[[str], None]
) -> None:
    """Be a worker until SIGTERM comes or Dask retires it; `ready` is told its address.

    Raises FarmError (GE-407) where the scheduler cannot be reached, or is gone later.
    """

    async def serve() -> None:
        from distributed import Status, Worker

        class FarmWorker(Worker):
            """Remembers whether it was retired before it closed."""

            is_retired = False

            async def close(self, *given: Any, **named: Any) -> Any:
                self.is_retired |= self.status is Status.closing_gracefully
                return await super().close(*given, **named)

        try:
            worker = await FarmWorker(
                address, security=_security(files), death_timeout=CONNECT_S,
                dashboard_address=NOWHERE, **worker_options(desk),
            )  # fmt: skip
        except (OSError, TimeoutError, ValueError) as error:
            raise _unreachable(address, error) from None
        ready(worker.address)
        if not await _until_told(worker) and not worker.is_retired:
            raise _gone(address, "it ended, or the connection to it broke",
                        "a supervisor, such as systemd with Restart=on-failure, "
                        "starts workers again")  # fmt: skip

    with temporary.folder("gpuedge-farm-") as folder, _dask(folder):
        asyncio.run(serve())


def serve_scheduler(
    host: str, port: int, files: Certificates | None, ready: Callable[[str], None]
) -> None:
    """Be a scheduler until SIGTERM comes; `ready` is told its address.

    Raises UsageError (GE-200) where others could reach it without TLS, InputError (GE-203) where
    the address cannot be taken.
    """
    if files is None and host not in HERE:
        raise UsageError(
            "A scheduler that others can reach needs TLS: whoever reaches it commands the workers.",
            asked_by="--host", known=host, hint="--tls-ca, --tls-cert, --tls-key",
        )  # fmt: skip

    async def serve() -> None:
        from distributed import Scheduler

        protocol = "tcp" if files is None else "tls"
        try:
            scheduler = await Scheduler(
                host=host, port=port, protocol=f"{protocol}://", security=_security(files),
                dashboard=False, dashboard_address=NOWHERE,
            )  # fmt: skip
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"A scheduler cannot listen at {host}:{port}.", asked_by="--port",
                known=str(error.__cause__ or error),
            ) from None  # fmt: skip
        ready(scheduler.address)
        await _until_told(scheduler)

    with temporary.folder("gpuedge-farm-") as folder, _dask(folder):
        asyncio.run(serve())


async def _until_told(server: Any) -> bool:
    """Wait until a server ends, and end it on SIGTERM; return whether that came."""
    told = asyncio.Event()
    with suppress(NotImplementedError):  # Windows has no such handlers
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    ends = {asyncio.ensure_future(server.finished()), asyncio.ensure_future(told.wait())}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    with suppress(Exception):  # it ends either way
        await server.close()
    return told.is_set()


def _unreachable(address: str, error: BaseException) -> FarmError:
    return FarmError(
        f"The scheduler at {address} cannot be reached.",
        asked_by="--scheduler",
        known=str(error.__cause__ or error) or type(error).__name__,
        hint="gpuedge farm scheduler; with tls:// both sides need certificates of the same CA",
    )


def _gone(address: str, known: str, hint: str) -> FarmError:
    return FarmError(
        f"The scheduler at {address} is gone.", asked_by="--scheduler", known=known, hint=hint
    )


class Engine:
    """The client of a run: who is there, and shards in flight."""

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise self.gone(error) from error

    def gone(self, error: BaseException | None = None) -> FarmError:
        """Return the error that tells that the scheduler is gone."""
        known = said(error) if error else "the connection to it broke, or it was restarted"
        return _gone(self._address, known,
                     "finished shards are in the store: gpuedge farm run --resume")  # fmt: skip

    def workers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what workers that live say of themselves, by address."""
        with self._reached():
            ask: Any = self._client.scheduler
            if self._client.status != "running" or ask is None:
                raise self.gone()
            # scheduler_info() may return what Dask's own look a moment later got: no workers
            info = self._client.sync(ask.identity, n_workers=-1, callback_timeout=CONNECT_S)
            return info["workers"]  # type: ignore[no-any-return]

    def submit(self, name: str, request: str, key: str, addresses: Iterable[str]) -> Future[str]:
        """Have a shard run by one of these workers on a device of that key."""
        with self._reached():
            return self._client.submit(
                work.shard, request, key=name, workers=list(addresses),
                resources={resource(key): 1}, allow_other_workers=False, pure=False,
            )  # fmt: skip

    def running(self) -> Mapping[str, str]:
        """Return the worker that each shard in flight was given to, by the shard's name."""
        with self._reached():
            by_worker = self._client.processing()
        return {str(name): worker for worker, names in by_worker.items() for name in names}

    def ended(self, flying: Sequence[Future[str]], within_s: float) -> list[Future[str]]:
        """Return which futures are over, after so long at most."""
        from distributed import wait

        gone = (asyncio.CancelledError, concurrent.futures.CancelledError)  # `reply` tells of it
        with suppress(TimeoutError, *gone), self._client.as_current():
            wait(list(flying), timeout=within_s, return_when="FIRST_COMPLETED")
        return [future for future in flying if future.done()]

    def reply(self, future: Future[str]) -> tuple[str, str]:
        """Return a reply and the address of the worker that has it.

        The address is empty where that worker died meanwhile, and Dask has another one do the
        shard; the reply is empty where the worker does not hand it over.

        Raises FarmError where it is lost; LookupError with the reason where a shard ended so many
        workers that Dask gave it up, or raised what is no error of gpuedge.
        """
        from distributed import KilledWorker

        if future.status in ("cancelled", "lost"):
            raise self.gone()
        if future.status == "error":
            error = future.exception()
            is_deadly = isinstance(error, KilledWorker)
            text = "the workers that ran it ended, one after the other" if is_deadly else error
            raise LookupError(str(text))
        with self._reached():
            holders = self._client.who_has([future])
            holder = next(iter(next(iter(holders.values()), ())), "")
        try:
            return str(future.result(FETCH_S)) if holder else "", holder
        except TimeoutError:
            return "", holder


@contextmanager
def connected(address: str, files: Certificates | None) -> Iterator[Engine]:
    """Connect to a scheduler. Raises FarmError (GE-407)."""
    with _dask():
        from distributed import Client

        try:
            client = Client(address, security=_security(files), timeout=CONNECT_S,
                            set_as_default=False)  # fmt: skip
        except (OSError, TimeoutError, ValueError) as error:
            raise _unreachable(address, error) from None
        try:
            yield Engine(client, address)
        finally:
            with suppress(Exception):  # where the scheduler is gone, there is nobody to tell
                client.close(5)


@contextmanager
def embedded(announced: Announcement, jobs: int) -> Iterator[Engine]:
    """Be scheduler, worker and client at once, with the devices of this machine."""
    with temporary.folder("gpuedge-farm-") as folder, _dask(folder):
        from distributed import Client, LocalCluster, Worker

        options = worker_options(Desk(announced, jobs))
        with LocalCluster(
            n_workers=1, threads_per_worker=options.pop("nthreads"), processes=False,
            worker_class=Worker, dashboard_address=NOWHERE, **options,
        ) as cluster, Client(cluster, set_as_default=False) as client:  # fmt: skip
            yield Engine(client, "this process")
