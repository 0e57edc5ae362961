"""The process of a rank: `python -m srtkit.parallel.worker`, told everything on its standard input.

The pipe stays open: its end means that the parent is gone, and the worker ends at once, whatever it does.
"""

import gc
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import msgspec

from srtkit.config.prepare import RankSpec, restore
from srtkit.parallel.banner import log_with_time, show_loading
from srtkit.plugins.loaded import STARTING, STEPPING, blame
from srtkit.spec.errors import SrtError
from srtkit.spec.messages import Failed, Ready, encode
from srtkit.spec.transport import Sender, TransportBuild


def main() -> int:
    """Run rank 0 until told to stop; the exit code is that of the error that ended it."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # both may be sent to every process; the parent decides
        signal.signal(number, signal.SIG_IGN)
    if not (line := sys.stdin.buffer.readline()):
        return 0  # the parent was stopped just when it had started this
    spec = msgspec.json.decode(line, type=RankSpec)
    threading.Thread(target=_end_with_parent, args=(spec.folder,), name="parent-watch", daemon=True).start()
    log_with_time()
    name = f"rank {spec.rank}"
    outbox: Sender | None = None
    doing = STARTING
    try:
        settings, loaded, config = restore(spec)
        plugin = loaded.one("transport")
        transport = plugin.descriptor.build(TransportBuild(Path(spec.folder), plugin.options))
        inbox, outbox = transport.receiver("requests"), transport.sender("deltas")
        from srtkit.engine.build import build_engine

        built = build_engine(settings, loaded, spec.facts, config, Path(spec.path), show_loading)
        loop = built.loop(inbox, outbox, on_idle=gc.collect)
        gc.collect()
        gc.freeze()
        gc.disable()
        outbox.send([encode(Ready(name, spec.wiring.digest, built.info()))])
        doing = STEPPING
        loop.run()
        built.close()
        transport.close()
    except Exception as error:
        return _fail(blame(error, spec.wiring, doing), name, outbox, error)
    return 0


def _end_with_parent(folder: str) -> None:
    while os.read(sys.stdin.fileno(), 1):  # not `sys.stdin`: the interpreter could not end while a thread reads it
        pass
    shutil.rmtree(folder, ignore_errors=True)  # a parent that was killed has left it
    os._exit(0)


def _fail(error: SrtError, name: str, outbox: Sender | None, cause: Exception) -> int:
    if error is not cause:
        sys.excepthook(type(cause), cause, cause.__traceback__)
    if outbox is None:
        print(f"error: {error}", file=sys.stderr)
    else:
        outbox.send([encode(Failed(name, error.part, error.cause, error.remedy, error.exit_code))])
        outbox.close()
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
