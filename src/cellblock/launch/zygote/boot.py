"""Makes the package importable in an interpreter that may not have it, and continues there.

Started by path: boot.py zygote|spawn none|native|landlock ENVIRONMENT [MODULE ...], with a control socket as standard input.
The modules are imported from the directory of a trusted environment, if it is not empty. The package is loaded directly, not
through sys.path: its parent directory has the packages of another interpreter.
"""

import os
import sys

EXIT_TOO_OLD = 64
EXIT_REFUSED = 67


def main():  # type: ignore[no-untyped-def]  # runs on interpreters that are too old for annotations, to tell them so
    """Make the package importable, and start."""
    if sys.version_info < (3, 11):
        sys.stderr.write("Python %d.%d is too old\n" % sys.version_info[:2])
        sys.exit(EXIT_TOO_OLD)
    # As users of a kernel expect: the current directory comes first, and cellblock's own is not there.
    sys.path[0] = ""
    import importlib.util

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    spec = importlib.util.spec_from_file_location(
        "cellblock", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cellblock"] = module
    spec.loader.exec_module(module)
    if sys.argv[2] not in ("none", "native", "landlock", "entered"):
        sys.exit("boot.py cannot prepare %r" % sys.argv[2])  # rather than start kernels without it
    if sys.argv[2] == "native":
        from cellblock.walls.sandbox.ground import ENVIRONMENT, Ground
        from cellblock.walls.sandbox.plan import ENVIRONMENT_PLACE

        # Before anything else: a process with threads cannot enter a user namespace, and libraries start threads.
        try:
            Ground.enter(sys.argv[3])
        except OSError as error:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # there may be too many to import anything
            from cellblock.launch.init.refusing import refusal, refuse_all

            refuse_all(sys.argv[1], refusal(error, "user namespace"))
            sys.exit(EXIT_REFUSED)
        environment = sys.argv[3] and ENVIRONMENT_PLACE
        os.execve(sys.executable, [sys.executable, __file__, sys.argv[1], "entered", environment] + sys.argv[4:], ENVIRONMENT)
    if sys.argv[2] == "landlock":
        from cellblock.walls.sandbox import landlock_rules

        landlock_rules.prepare()
    # The argv that user code sees.
    mode, native, environment, preload = sys.argv[1], sys.argv[2] == "entered", sys.argv[3], tuple(sys.argv[4:])
    sys.argv[:] = [""]
    if mode == "zygote":
        from cellblock.launch.zygote.fork_server import serve

        serve(preload, native, environment)
    else:
        from cellblock.launch.zygote.alone import serve_alone

        serve_alone(preload, native, environment)


if __name__ == "__main__":
    main()
