"""Worker processes of a sweep, and how they and their parent end.

- Ctrl-C is the parent's: it reaches every process of the terminal, so workers and the process that forks them are
  deaf to it. While the workers start, the parent only notes it: a worker that lost its parent half-way through its
  start would print a traceback over the one line that the user is owed.
- A parent that is interrupted, or fails, ends its workers and waits for them. One that is killed cannot; its workers
  notice and end by themselves.
"""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from typing import Any

_START_TIMEOUT_S = 120.0


@contextmanager
def worker_pool(num_workers: int, preload: str) -> Iterator[ProcessPoolExecutor]:
    """A pool whose workers are up, each having imported the module `preload` once for all."""
    context = get_context("forkserver")
    context.set_forkserver_preload([preload])
    with _interrupts_noted():
        forkserver.ensure_running()
        barrier = context.Barrier(num_workers)
        pool = ProcessPoolExecutor(
            num_workers, mp_context=context, initializer=_start_worker, initargs=(barrier,)
        )
        for started in [pool.submit(os.getpid) for _ in range(num_workers)]:
            started.result()
    try:
        yield pool
    except BaseException:
        workers = list((pool._processes or {}).values())  # no public way before Python 3.14
        pool.shutdown(wait=False, cancel_futures=True)
        for process in workers:
            process.terminate()
        for process in workers:
            process.join()
        raise
    pool.shutdown()


@contextmanager
def _interrupts_noted() -> Iterator[None]:
    """Hold Ctrl-C back, here and in the processes started meanwhile; raise KeyboardInterrupt at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    resource_tracker.ensure_running()  # its own start would lift the mask below
    noted: list[int] = []
    before: Any = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what a started process inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


def _start_worker(all_started: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    all_started.wait(_START_TIMEOUT_S)


def _end_with(sentinel: int) -> None:
    """A parent that was killed cannot end its workers; they would wait for it, and hold its cells, for ever."""
    wait([sentinel])
    os._exit(1)
