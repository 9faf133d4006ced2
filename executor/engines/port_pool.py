"""Ports for servers on this machine, each given out once and only where it is free.

Guarantees: a port that was given out can be bound, is given to nobody else by this pool, and to no other run of
the same user (a lock file per port, `libra.locks`): an engine listens only long
after it was given its port.
"""

import os
import socket
import tempfile
from pathlib import Path

from libra.errors import UserError
from libra.locks import HeldLock, take_lock

_MEND = "give `18100-18199`, or ports with commas"


def parse_ports(text: str) -> tuple[int, ...]:
    """The ports of `18100-18199` or `18100,18105`, in order. UserError if it is neither."""
    ports: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            raise UserError(f"ports: {part.strip()!r} is no port and no range; {_MEND}") from None
        if not 1 <= low <= high <= 65535:
            raise UserError(f"ports: {part.strip()!r} must rise within 1 to 65535; {_MEND}")
        ports.extend(range(low, high + 1))
    if len(set(ports)) != len(ports):
        raise UserError(f"ports: {text!r} names a port twice; {_MEND}")
    return tuple(ports)


class PortPool:
    """Gives out the ports of a text such as `18100-18199`, lowest first."""

    def __init__(self, ports: str, host: str = "127.0.0.1", lock_folder: Path | None = None) -> None:
        self._text = ports
        self._host = host
        self._ports = parse_ports(ports)
        self._locks: dict[int, HeldLock] = {}  # by port
        self._folder = lock_folder or Path(tempfile.gettempdir()) / f"libra-ports-{os.getuid()}"

    def take(self) -> int:
        """A free port; a busy one is skipped. UserError if none is left, naming the one that was asked for."""
        for port in self._ports:
            if port not in self._locks and self._lock(port):
                return port
        if len(self._ports) == 1:
            raise UserError(
                f"ports: {self._ports[0]} on {self._host} is busy; end what uses it or name another"
            )
        raise UserError(
            f"ports: all {len(self._ports)} of {self._text} on {self._host} are busy; "
            "name a wider range or end what uses them"
        )

    def take_this(self, port: int) -> int:
        """This very port. UserError if it is busy."""
        if port in self._locks or not self._lock(port):
            raise UserError(f"ports: {port} on {self._host} is busy; end what uses it or name another")
        return port

    def give_back(self, port: int) -> None:
        """The server on it is gone. Harmless where it was not taken."""
        lock = self._locks.pop(port, None)
        if lock is not None:
            lock.let_go()

    def close(self) -> None:
        """Give all back."""
        for port in list(self._locks):
            self.give_back(port)

    def num_free(self) -> int:
        """How many could be taken now."""
        return sum(port not in self._locks and can_bind(self._host, port) for port in self._ports)

    def _lock(self, port: int) -> bool:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take_lock(self._folder / f"{port}.lock", 0o600)
        if lock is None:
            return False
        if not can_bind(self._host, port):
            lock.let_go()
            return False
        self._locks[port] = lock
        return True


def check_host(host: str) -> None:
    """Refuse, in one line, an address on which no server of this machine could listen, whatever the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except (socket.gaierror, UnicodeError):
            raise UserError(
                f"executor.engines.host: {host!r} does not resolve to an IPv4 address; "
                "name one of this machine, such as 127.0.0.1"
            ) from None
        except OSError as error:
            raise UserError(
                f"executor.engines.host: nothing can listen on {host} ({error.strerror}); "
                "name an address of this machine, such as 127.0.0.1"
            ) from None


def can_bind(host: str, port: int) -> bool:
    """Whether a server could listen there now. A port in TIME_WAIT counts as free, as for the server itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # SO_REUSEADDR lets a bind beside a listener pass on some systems
        except OSError:
            return False
    return True
