"""``python -m cellblock``."""

import sys

from cellblock.cli import main

sys.exit(main())
