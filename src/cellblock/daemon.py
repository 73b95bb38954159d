"""``python -m cellblock.daemon DIRECTORY [READY]``: the daemon itself. Units of systemd name it, so its place does not change."""

import sys

from cellblock.service.daemon.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
