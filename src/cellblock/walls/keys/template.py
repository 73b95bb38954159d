"""The process from which turnkeys are forked, so that they share its memory: started by path, with its socket as argument.

Each message on the socket is the socket of one new turnkey. The process ends with the host's end of the socket, and holds no
secret.
"""

import os
import sys


def main():  # type: ignore[no-untyped-def]  # before the package can be imported
    """Make the package importable without the paths of the host's environment, and start."""
    import importlib.util

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.pop(0)  # this directory, whose modules have names of others
    spec = importlib.util.spec_from_file_location(
        "cellblock", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cellblock"] = module
    spec.loader.exec_module(module)
    from cellblock.walls.keys import forking

    forking.run(int(sys.argv[1]))


if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
