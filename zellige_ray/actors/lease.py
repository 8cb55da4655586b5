"""The lease: an actor that hears nothing for too long ends itself, so that none outlives a dead job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLLS = 20


class Lease:
    """Calls `expire` once, in its own thread, when `renew` was not called for `lease_s`."""

    def __init__(self, lease_s: float, expire: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s, self._expire, self._clock = lease_s, expire, clock
        self._heard = clock()
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="zellige-lease", daemon=True).start()

    def renew(self) -> None:
        """A word came from whoever holds the lease."""
        self._heard = self._clock()

    def end(self) -> None:
        """Nobody needs to be heard any more."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._lease_s / POLLS):
            if self._clock() - self._heard > self._lease_s:
                self._expire()
                return
