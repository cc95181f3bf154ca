"""`python -m kvstore` is the `moonpool` command."""

import sys

from kvstore.cli import parent

parent.heed()  # before anything that takes long

from kvstore.cli.main import main  # noqa: E402

sys.exit(main())
