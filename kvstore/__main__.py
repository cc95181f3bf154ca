"""`moonpool`, and `python -m kvstore`, which is the same command."""

import signal
import sys

from kvstore import garbage
from kvstore.cli import parent

if __name__ == "__main__":  # so processes of ours are started, and `moonpool` by anybody
    parent.heed()  # before anything that takes long

garbage.look_seldom()

# To import it takes a moment, out of whose midst Ctrl-C would be a traceback.
_interrupted = signal.getsignal(signal.SIGINT)
if _interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from kvstore.cli.main import main  # noqa: E402

signal.signal(signal.SIGINT, _interrupted)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
