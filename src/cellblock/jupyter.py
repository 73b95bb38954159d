"""``python -m cellblock.jupyter -f FILE``: a kernel for Jupyter. Kernelspecs name this module, so it stays here."""

import sys

from cellblock.fronts.jupyter.main import main

if __name__ == "__main__":
    sys.exit(main())
