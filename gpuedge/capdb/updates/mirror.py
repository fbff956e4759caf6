"""Reading from a mirror: a folder or a web server, under one deadline that nothing can stretch.

Every read happens in a thread of its own, and the caller waits for it no longer than the deadline:
a server that sends one byte a minute, a name server that does not answer and a network drive that
hangs all end in the same way. A mirror is never trusted with anything but time and bytes; what the
bytes are worth is for the signatures to say.
"""

from __future__ import annotations

import os
import queue
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from gpuedge.core.errors import UpdateError

if TYPE_CHECKING:
    from tuf.ngclient import FetcherInterface

CHUNK = 1 << 16

GAP_S = 10.0
"""A connection is given up where nothing comes for this long, so that its thread ends, too."""

LATE = "the deadline has passed"

_AHEAD = 16
"""Chunks that are read before they are asked for: 1 MiB, whatever a server pours out."""

_PART = re.compile(r"[A-Za-z0-9_%][A-Za-z0-9_.%-]*")

_READ = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
    _READ |= getattr(os, _flag, 0)


class Stream(Protocol):
    """Something open that is read in pieces; an empty piece is the end."""

    def read1(self, size: int, /) -> bytes:
        """Return what is there, at most `size` bytes, waiting for the first of them only."""

    def close(self) -> None:
        """Close it."""


class AbsentError(Exception):
    """The mirror has no such file.

    Parameters
    ----------
    status : int
        The answer's status, as HTTP counts.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Mirror:
    """A mirror of a repository.

    Parameters
    ----------
    source : str or Path
        The folder, or the ``http(s)`` address, that holds ``metadata/`` and ``targets/``.
    deadline_s : float
        Seconds from now until every read must have ended.

    Raises
    ------
    UpdateError (GE-601)
        The source is neither.
    """

    def __init__(self, source: str | Path, deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s
        self._opened = _opener(source, self._left)

    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _wait(self) -> float:
        left = self._left()
        if left == 0.0:  # whether or not something would be there
            raise TimeoutError(LATE)
        return left

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes; `path` is relative, such as ``metadata/1.root.json``.

        Raises
        ------
        TimeoutError
            The deadline has passed.
        AbsentError
            There is no such file.
        OSError
            It cannot be read.
        """
        if not all(_PART.fullmatch(part) for part in path.split("/")):
            raise OSError(f"{path[:80]!r} is no path on a mirror")
        pipe: queue.Queue[bytes | Exception] = queue.Queue(_AHEAD)
        is_over = threading.Event()
        arguments = (lambda: self._opened(path), pipe, is_over)
        threading.Thread(target=_pump, args=arguments, name="gpuedge-mirror", daemon=True).start()
        try:
            while True:
                try:
                    piece = pipe.get(timeout=self._wait())
                except queue.Empty:
                    raise TimeoutError(LATE) from None
                if isinstance(piece, Exception):
                    raise piece
                if not piece:
                    return
                yield piece
        finally:
            is_over.set()


def _pump(
    opened: Callable[[], Stream], pipe: queue.Queue[bytes | Exception], is_over: threading.Event
) -> None:
    """Read a stream into a queue, until its end or until nobody listens any more."""
    try:
        with closing(opened()) as stream:
            piece = b"-"
            while piece and not is_over.is_set():
                piece = stream.read1(CHUNK)
                _put(pipe, piece, is_over)
    except Exception as error:  # whatever a network library raises ends this read, no more
        _put(pipe, error, is_over)


def _put(
    pipe: queue.Queue[bytes | Exception], piece: bytes | Exception, is_over: threading.Event
) -> None:
    while not is_over.is_set():
        try:
            pipe.put(piece, timeout=0.1)
            return
        except queue.Full:
            continue


def _opener(source: str | Path, left: Callable[[], float]) -> Callable[[str], Stream]:
    try:
        scheme = "" if isinstance(source, Path) else urlsplit(source).scheme.lower()
        if scheme in {"http", "https"}:
            return _web(str(source), left)
        folder = Path(source).expanduser()
    except (ValueError, RuntimeError) as error:  # half of an IPv6 address; the home of nobody
        raise _unusable(source, str(error)) from None
    if not str(source).strip():
        raise _unusable(source, "it is empty")
    if len(scheme) > 1:  # one letter is a drive
        raise _unusable(
            source, "a mirror is a folder, or an address that starts with https:// or http://"
        )
    return lambda path: _file(folder / path)


def _unusable(source: str | Path, why: str) -> UpdateError:
    return UpdateError(f"The mirror {str(source)!r} cannot be used.", known=why)


def _file(path: Path) -> Stream:
    """Open a regular file; anything else (a pipe, a device) would be waited for or would act."""
    try:
        fd = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        raise AbsentError(404) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path.name} is not a file")
    return os.fdopen(fd, "rb")


def _web(source: str, left: Callable[[], float]) -> Callable[[str], Stream]:
    parts = urlsplit(source)
    if not parts.netloc or parts.query or parts.fragment:
        raise _unusable(source, "an address needs a host, and may have no '?' and no '#'")
    base = source if source.endswith("/") else source + "/"
    opener: list[Any] = []

    def opened(path: str) -> Stream:
        import urllib.error

        if not opener:
            opener.append(_web_opener())
        try:
            answer = opener[0].open(base + path, timeout=min(GAP_S, max(0.1, left())))
        except urllib.error.HTTPError as error:
            error.close()
            raise AbsentError(error.code) from None
        return _Whole(answer)

    return opened


class _Whole:
    """An answer of which the end is believed only where as much came as was announced.

    What `http.client` reads in pieces it does not count.
    """

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        told = answer.headers.get("Content-Length", "")
        is_counted = told.isdecimal() and not answer.headers.get("Transfer-Encoding")
        self._whole = int(told) if is_counted else None
        self._come = 0

    def read1(self, size: int, /) -> bytes:
        piece = cast("bytes", self._answer.read1(size))
        self._come += len(piece)
        if not piece and self._whole is not None and self._come < self._whole:
            raise OSError(f"the answer was cut: {self._come} of {self._whole} bytes came")
        return piece

    def close(self) -> None:
        self._answer.close()


def _web_opener() -> Any:
    """Return an opener for web addresses and nothing else, which follows no way out of TLS."""
    from urllib import request
    from urllib.error import URLError

    class Redirects(request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, *rest: Any) -> Any:
            if req.type == "https" and urlsplit(rest[-1]).scheme != "https":
                fp.close()
                raise URLError("the server redirects from https to http")
            return super().redirect_request(req, fp, *rest)

    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(), request.HTTPHandler(), request.HTTPSHandler(), Redirects(),
        request.HTTPErrorProcessor(), request.HTTPDefaultErrorHandler(), request.UnknownHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "gpuedge"), ("Accept-Encoding", "identity")]
    return opener


def fetcher(mirror: Mirror) -> FetcherInterface:
    """Return what python-tuf reads through; its addresses are paths relative to the mirror."""
    from tuf.api.exceptions import DownloadError, DownloadHTTPError, SlowRetrievalError
    from tuf.ngclient import FetcherInterface

    class Fetcher(FetcherInterface):
        def _fetch(self, url: str) -> Iterator[bytes]:
            try:
                yield from mirror.chunks(url)
            except AbsentError as error:
                raise DownloadHTTPError(f"{url}: {error}", error.status) from None
            except TimeoutError as error:
                raise SlowRetrievalError(f"{url}: {error}") from None
            except Exception as error:
                why = str(error) or type(error).__name__
                raise DownloadError(f"{url}: {why}") from None

    return Fetcher()
