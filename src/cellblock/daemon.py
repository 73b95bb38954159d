"""``python -m cellblock.daemon DIRECTORY [READY]``: the daemon. systemd units name this module, so it stays here."""

import sys

from cellblock.service.daemon.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
