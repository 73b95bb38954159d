"""What has to work inside of a sandbox: the libraries and programs that the policy for system calls was made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Host, Session
from cells import ok, value

pytestmark = pytest.mark.slow

PIECES: dict[str, tuple[str, object]] = {
    "numpy": ("import numpy as np; a = np.random.rand(300, 300); float(round((np.linalg.inv(a) @ a).trace()))", 300.0),
    "pandas": (
        "import pandas as pd; d = pd.DataFrame({'a': range(10), 'b': list('xy') * 5}); d.to_csv('d.csv'); int(pd.read_csv('d.csv').groupby('b').a.sum()['y'])",
        25,
    ),
    "parquet": (
        "import pandas as pd; pd.DataFrame({'a': range(10)}).to_parquet('d.parquet'); int(pd.read_parquet('d.parquet').a.sum())",
        45,
    ),
    "pyarrow": ("import pyarrow.compute as pc, pyarrow as pa; pc.sum(pa.array(range(100_000))).as_py()", 4999950000),
    "duckdb": (
        "import duckdb; c = duckdb.connect('d.duckdb'); c.sql('select sum(x) from range(1000) t(x)').fetchall()[0][0]",
        499500,
    ),
    "scikit-learn": (
        "from sklearn.ensemble import RandomForestClassifier as R; from sklearn.datasets import load_iris as l; X, y = l(return_X_y=True); bool(R(n_jobs=2).fit(X, y).score(X, y) > 0.9)",
        True,
    ),
    "sqlite": (
        "import sqlite3; c = sqlite3.connect('d.sqlite'); c.execute('pragma journal_mode=wal'); c.execute('create table t(x)'); c.executemany('insert into t values (?)', [(1,), (2,)]); c.commit(); c.execute('select sum(x) from t').fetchone()[0]",
        3,
    ),
    "asyncio subprocesses": (
        "import asyncio; p = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1); (await p.communicate(b'hello'))[0]",
        b"hello",
    ),
    "pool by fork": (
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: got = p.map(abs, [-1, -2])\ngot",
        [1, 2],
    ),
    "pool by spawn": (
        "import multiprocessing as m\nwith m.get_context('spawn').Pool(2) as p: got = p.map(abs, [-1, -2])\ngot",
        [1, 2],
    ),
    "pool by fork server": (
        "import multiprocessing as m\nwith m.get_context('forkserver').Pool(2) as p: got = p.map(abs, [-1, -2])\ngot",
        [1, 2],
    ),
    "manager": (
        "import multiprocessing as m\nwith m.Manager() as g:\n    d = g.dict(a=1); d['b'] = 2; got = dict(d)\ngot",
        {"a": 1, "b": 2},
    ),
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory as S\ns = S(create=True, size=9); t = S(s.name); s.buf[0] = 7; got = t.buf[0]; t.close(); s.close(); s.unlink()\ngot",
        7,
    ),
    "process pool": (
        "from concurrent.futures import ProcessPoolExecutor as P\nwith P(2) as p: got = list(p.map(abs, [-1, -2]))\ngot",
        [1, 2],
    ),
    "git": (
        "import subprocess as s; g = ['git', '-c', 'user.name=x', '-c', 'user.email=x']; s.run([*g, 'init', '-q'], check=True); open('f', 'w').close(); s.run([*g, 'add', 'f'], check=True); s.run([*g, 'commit', '-qm', 'first'], check=True); s.run([*g, 'log', '--format=%s'], capture_output=True, text=True).stdout",
        "first\n",
    ),
    "tar": (
        "import subprocess as s, os; os.mkdir('t'); open('t/f', 'w').close(); s.run('tar czf t.tgz t && rm -r t && tar xzf t.tgz', shell=True, check=True); os.listdir('t')",
        ["f"],
    ),
    "copies": (
        "import shutil, os; open('a', 'wb').write(bytes(10**6)); shutil.copy('a', 'b'); os.system('cp a c'); os.path.getsize('b') + os.path.getsize('c')",
        2000000,
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor as T\nwith T(8) as t: got = sum(t.map(abs, range(-100, 0)))\ngot",
        5050,
    ),
    "a terminal": ("import pty, os; m, s = os.openpty(); os.write(s, b'x'); os.read(m, 1)", b"x"),
}


@pytest.mark.parametrize(("code", "expected"), PIECES.values(), ids=PIECES)
async def test_it_works_in_a_sandbox(jail: Session, code: str, expected: object) -> None:
    assert await value(jail, code, timeout=100) == expected


async def test_plots_work_in_a_sandbox(jail: Session) -> None:
    result = await ok(jail, "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()", timeout=100)
    assert len(result.images) == 1


async def test_shell_cells_work_in_a_sandbox(jail: Session) -> None:
    assert (await ok(jail, "%%bash\necho $((6 * 7)) | cat; ls /nowhere 2>/dev/null || true")).output == "42\n"
    assert (await ok(jail, "!echo $HOME")).output == "/home/user\n"


@pytest.mark.parametrize("module", ["numpy", "pandas", "matplotlib"])
async def test_libraries_with_threads_can_be_preloaded(workspace: Path, tmp_path: Path, module: str) -> None:
    async with Host(isolate="native", preload=(module,)) as host:
        for _ in range(2):
            async with host.session(working_dir=workspace, images_dir=tmp_path / "images") as session:
                code = "import numpy as np; a = np.random.rand(400, 400); float(round((np.linalg.inv(a) @ a).trace()))"
                assert await value(session, code, timeout=60) == 400.0
