"""`python -m kvstore` is the `moonpool` command."""

import sys

from kvstore.cli.main import main

sys.exit(main())
