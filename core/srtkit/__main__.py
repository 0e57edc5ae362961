"""`python -m srtkit` is `srt`, for where another package owns that script."""

import sys

from srtkit.cli.main import main

sys.exit(main())
