"""Reading from a mirror: a folder or a web server.

A mirror is never trusted with anything but time and bytes; what the bytes are worth is for the
signatures to say. Who reads does so under a deadline (`gpuedge.safety.deadline`), since a name
server or a network drive may hang where no timeout of ours reaches.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from gpuedge.core.errors import UpdateError

if TYPE_CHECKING:
    from tuf.ngclient import FetcherInterface

CHUNK: Final = 1 << 16

GAP_S: Final = 10.0
"""A connection is given up where nothing comes for this long, so that its thread ends, too."""

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
        Seconds from now until everything must have been read.

    Raises
    ------
    UpdateError (GE-601)
        The source is neither.
    """

    def __init__(self, source: str | Path, deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s
        self._opened = _opener(source, self.left)

    def left(self) -> float:
        """Return the seconds until the deadline, at least zero."""
        return max(0.0, self._end - time.monotonic())

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
            raise OSError(f"{path[:80]!r} is not a path on a mirror")
        self._check()
        with closing(self._opened(path)) as stream:
            while piece := stream.read1(CHUNK):
                self._check()
                yield piece

    def _check(self) -> None:
        if not self.left():
            raise TimeoutError("the deadline has passed")


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
        if not opener:
            opener.append(_web_opener())
        try:
            answer: Stream = opener[0].open(base + path, timeout=min(GAP_S, max(0.1, left())))
        except HTTPError as error:
            error.close()
            raise AbsentError(error.code) from None
        return answer

    return opened


def _web_opener() -> Any:
    """Return an opener for web addresses and nothing else, which follows no way out of TLS."""

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
