"""What is immortal stays as it is and works; what is made later lives and dies as before."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

from cellblock import Host

_CAN = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")

_MAKE = """
import asyncio, gc, json, sys, typing, weakref
from cellblock.launch.zygote.immortal import immortalise

class Thing:
    def __init__(self):
        self.parts = [object(), 2.5]

def outer():
    def inner(x=3.5):
        return "a constant %s" % x
    return inner

thing = Thing()
immortalise()

def counted(one):
    before = sys.getrefcount(one)
    many = [one] * 100
    return sys.getrefcount(one) - before

made = compile("def nested(): return 'not an identifier'", "<made>", "exec")
"""


def _run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", _MAKE + script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")  # also at the end of the interpreter, where everything is cleared away
    return done.stdout


def test_what_is_there_is_not_counted_from_python_3_12_on() -> None:
    script = """
code = outer.__code__
inner = next(one for one in code.co_consts if hasattr(one, "co_code"))
constants = [one for one in inner.co_consts if type(one) is str and "%" in one]
for one in (Thing, thing, thing.parts, outer, code, code.co_consts, inner, constants[0], json, typing.Any, sys.modules):
    print(counted(one))
"""
    assert _run(script).split() == ["0" if _CAN else "100"] * 11


def test_what_is_made_later_is_counted_and_dies() -> None:
    script = """
print(counted(made), counted(Thing()), counted([1]))
for make in (Thing, type("Late", (Thing,), {})):
    one = make()
    seen = weakref.ref(one)
    del one
    assert seen() is None
thing.late = Thing()
seen = weakref.ref(thing.late)
thing.__dict__.clear()
assert seen() is None
circle = Thing()
circle.itself = circle
seen = weakref.ref(circle)
del circle
gc.collect()
assert seen() is None
"""
    assert _run(script).split() == ["100"] * 3


def test_everything_works_on() -> None:
    script = """
for _ in range(3):
    assert outer()() == "a constant 3.5"
    gc.collect()
immortalise()
del Thing, thing, outer
assert json.loads(json.dumps({"a": [1, None, 2.5]})) == {"a": [1, None, 2.5]}
asyncio.run(asyncio.sleep(0))
print(gc.get_freeze_count() > 0)
"""
    assert _run(script) == f"{_CAN}\n"


async def test_a_kernel_does_not_count_what_its_zygote_has_loaded(zygote_host: Host) -> None:
    code = """
import sys, IPython
before = sys.getrefcount(IPython)
many = [IPython] * 100
print(sys.getrefcount(IPython) - before, end="")
"""
    async with zygote_host.session(recovery="none") as session:
        assert (await session.execute(code)).text == ("0" if _CAN else "100")
