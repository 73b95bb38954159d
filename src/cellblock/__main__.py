"""``python -m cellblock``."""

import sys

from cellblock.fronts.cli import main

sys.exit(main())
