"""``python -m cellblock.daemon DIRECTORY [READY]``: the daemon. Units of systemd name it, so it stays here."""

import sys

from cellblock.service.daemon.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
