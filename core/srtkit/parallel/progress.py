"""A progress bar for loading, on a terminal; silent elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def load_progress() -> Iterator[Callable[[int, int], None]]:
    """Yields progress(done, total), in bytes."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress

    columns = ("{task.description}", BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading weights", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
