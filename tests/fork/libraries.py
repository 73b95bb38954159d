"""What is used, copied and used again: cells for each library, and what is expected of the copy. `trying` tries them."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library, and two pieces of code.

    Attributes:
        use: What starts whatever the library starts.
        again: What is expected to work in a copy, too; its last line is an expression that is true then.
        package: What has to be installed for it, if that is not called like the library.
        refused: A word of the reason if no copy may be made after it was used.
        told: A word of what the user is told after a restore.
        remark: For the table.
    """

    use: str
    again: str
    package: str = ""
    refused: str = ""
    told: str = ""
    remark: str = ""


_FIT = "X = np.random.default_rng(0).random((4000, 8)); y = (X[:, 0] > 0.5).astype(int)"

_GRPC_SERVER = """
import sys
import grpc, time
from concurrent.futures import ThreadPoolExecutor
class Reverse(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request[::-1])
server = grpc.server(ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Reverse()])
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
time.sleep(600)
"""

LIBRARIES: dict[str, Library] = {
    "numpy": Library(
        "import numpy as np; a = np.random.rand(500, 500); b = a @ a",
        "np.linalg.inv(a); np.allclose(a @ a, b)",
    ),
    "scipy": Library(
        "import numpy as np, scipy.linalg as l; a = np.random.rand(300, 300); l.svd(a)",
        "u, s, v = l.svd(a)\nnp.allclose(u * s @ v, a)",
    ),
    "pandas": Library(
        "import pandas as pd; d = pd.DataFrame({'a': range(50_000), 'b': ['x', 'y'] * 25_000}); g = d.groupby('b').a.sum()",
        "d.merge(d.head(9), on='a'); d.b.str.upper(); bool((d.groupby('b').a.sum() == g).all())",
    ),
    "matplotlib": Library(
        "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt, io; f = plt.figure(); plt.plot([1, 2])",
        "o = io.BytesIO(); f.savefig(o); plt.figure(); plt.hist([1, 2]); plt.savefig(o)\no.tell() > 1000",
    ),
    "seaborn": Library(
        "import matplotlib; matplotlib.use('agg'); import seaborn as s, pandas as pd; d = pd.DataFrame({'a': [1, 2], 'b': [3, 4]}); s.lineplot(d, x='a', y='b')",
        "s.heatmap(d) is not None",
    ),
    "pyarrow": Library(
        "import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq; t = pa.table({'a': range(300_000)}); pq.write_table(t, 'a.pq'); pq.read_table('a.pq'); t.group_by('a').aggregate([('a', 'sum')])",
        "r = pq.read_table('a.pq').sort_by('a').group_by('a').aggregate([('a', 'sum')])\nr.num_rows == 300_000",
    ),
    "pillow": Library(
        "from PIL import Image; i = Image.new('RGB', (900, 900), 'red').resize((99, 99))",
        "i.rotate(30).resize((9, 9)).size == (9, 9)",
    ),
    "opencv": Library(
        "import cv2, numpy as np; a = np.ones((2000, 2000), np.uint8); b = cv2.GaussianBlur(a, (31, 31), 0)",
        "bool((cv2.GaussianBlur(a, (31, 31), 0) == b).all())",
        package="opencv-python-headless",
    ),
    "networkx": Library(
        "import networkx as nx; g = nx.gnp_random_graph(200, 0.1, seed=1); p = nx.pagerank(g)",
        "nx.pagerank(g) == p",
    ),
    "statsmodels": Library(
        "import numpy as np, statsmodels.api as sm; x = sm.add_constant(np.random.rand(500, 3)); m = sm.OLS(x @ [1, 2, 3, 4], x).fit()",
        "bool(np.allclose(sm.OLS(x @ [1, 2, 3, 4], x).fit().params, [1, 2, 3, 4]))",
    ),
    "httpx": Library(
        "import subprocess, sys, httpx; p = subprocess.Popen([sys.executable, '-u', '-m', 'http.server', '0', '--bind', '127.0.0.1'], stdout=-1, stderr=-3)\n"
        "c = httpx.Client(base_url='http://127.0.0.1:' + p.stdout.readline().split()[5].decode())\n"
        "def ask():\n    try: return c.get('/').status_code == 200\n    except httpx.ConnectError: return in_copy  # the server ends with the original\n"
        "ask()",
        "ask()",
        told="processes",
    ),
    "sqlite, a file": Library(
        "import sqlite3; c = sqlite3.connect('d.sqlite'); c.execute('pragma journal_mode=wal'); c.execute('create table t(x)'); c.commit(); c.execute('select * from t').fetchall()",
        "c.execute('insert into t values (1)'); c.commit(); c.execute('select x from t').fetchone() == (1,)",
    ),
    "sqlite, in memory": Library(
        "import sqlite3; c = sqlite3.connect(':memory:'); c.execute('create table t(x)'); c.execute('insert into t values (1)')",
        "c.execute('select x from t').fetchall() == [(1,)]",
    ),
    "sqlite, in a transaction": Library(
        "import sqlite3; c = sqlite3.connect('d.sqlite'); c.execute('create table t(x)'); c.execute('insert into t values (1)')",
        "c.execute('select x from t').fetchall() == [(1,)]",
        refused="transaction",
    ),
    "duckdb, in memory": Library(
        "import duckdb; c = duckdb.connect(); q = 'select sum(x % 7) from range(3_000_000) t(x)'; r = c.sql(q).fetchall()",
        "c.sql(q).fetchall() == r",
        package="duckdb",
    ),
    "duckdb, a file": Library(
        "import duckdb; c = duckdb.connect('d.duckdb'); c.sql('create table t as select 1 x')",
        "c.sql('select x from t').fetchall() == [(1,)]",
        package="duckdb",
        refused="locked",
    ),
    "scikit-learn": Library(
        f"import numpy as np; {_FIT}\nfrom sklearn.cluster import KMeans as K; from sklearn.ensemble import HistGradientBoostingClassifier as H, RandomForestClassifier as R\nK(3, n_init=2).fit(X); h = H(max_iter=9).fit(X, y); R(20, n_jobs=2).fit(X, y)",
        "K(3, n_init=2).fit(X); H(max_iter=9).fit(X, y); R(20, n_jobs=2).fit(X, y).score(X, y) > 0.9 and h.score(X, y) > 0.9",
    ),
    "lightgbm": Library(
        f"import numpy as np, lightgbm as l; {_FIT}\nm = l.LGBMClassifier(n_estimators=9, n_jobs=2, verbose=-1).fit(X, y)",
        "l.LGBMClassifier(n_estimators=9, n_jobs=2, verbose=-1).fit(X, y); m._Booster.predict(X).shape == (4000,)",
    ),
    "xgboost": Library(
        f"import numpy as np, xgboost as x; {_FIT}\nm = x.XGBClassifier(n_estimators=9, n_jobs=2).fit(X, y)",
        "x.XGBClassifier(n_estimators=9, n_jobs=2).fit(X, y); m.predict(X).shape == (4000,)",
    ),
    "OpenMP of LLVM": Library(
        "import ctypes, importlib.metadata as m; l = ctypes.CDLL(str(next(f for f in m.files('intel-openmp') if f.name == 'libiomp5.so').locate()))\n"
        "seen = []; f = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(l.omp_get_thread_num())); l.GOMP_parallel(f, None, 2, 0)",
        "seen.clear(); l.GOMP_parallel(f, None, 2, 0); sorted(seen) == [0, 1]",
        package="intel-openmp",
    ),
    "torch": Library(
        "import torch; n = torch.nn.Linear(300, 300); x = torch.rand(900, 300)\n"
        "def step(): n(x).square().sum().backward(); return (x.T @ x).sum().item()\nr = step()",
        "abs(step() / r - 1) < 1e-3",
    ),
    "torch, DataLoader": Library(
        "import torch, torch.utils.data as t; l = t.DataLoader(t.TensorDataset(torch.arange(64.)), batch_size=8, num_workers=2); s = lambda: sum(b[0].sum().item() for b in l); s()",
        "s() == 2016",
        package="torch",
    ),
    "numba, parallel": Library(
        "import numba, numpy as np\n@numba.njit(parallel=True)\ndef f(a):\n    s = 0.0\n    for i in numba.prange(len(a)): s += a[i]\n    return s\na = np.ones(100_000); f(a)",
        "f(a) == 100_000",
        package="numba",
    ),
    "joblib": Library(
        "import joblib; p = lambda: joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-i) for i in range(8)); p()",
        "p() == list(range(8))",
        told="processes",
    ),
    "grpc": Library(
        f"import grpc, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {_GRPC_SERVER!r}], stdout=-1)\n"
        "a = f'127.0.0.1:{int(p.stdout.readline())}'; c = grpc.insecure_channel(a)\n"
        "def ask(c): return c.unary_unary('/a/b')(b'ab', timeout=9, wait_for_ready=True)\n"
        "ask(c)",
        "ask(c) == ask(grpc.insecure_channel(a)) == b'ba'",
        package="grpcio",
        refused="grpc",
    ),
    "polars": Library(
        "import polars as pl; d = pl.DataFrame({'a': range(9999)}); n = d.group_by('a').len().height",
        "d.group_by('a').len().height == 9999",
        refused="polars",
    ),
    "polars, imported": Library(
        "import polars as pl",
        "pl.DataFrame({'a': range(9999)}).group_by('a').len().height == 9999",
        package="polars",
    ),
    "jax": Library(
        "import jax.numpy as jnp; a = jnp.ones((300, 300)); (a @ a).sum()",
        "float((a @ a).sum()) == 27e6",
        refused="jax",
    ),
    "tqdm": Library(
        "import tqdm, io\nfor _ in tqdm.tqdm(range(9), file=io.StringIO()): pass",
        "b = tqdm.tqdm(range(9), file=io.StringIO()); list(b) == list(range(9)) and tqdm.tqdm.monitor.is_alive()",
    ),
    "ThreadPoolExecutor": Library(
        "from concurrent.futures import ThreadPoolExecutor as T; t = T(3); list(t.map(abs, range(9)))",
        "list(t.map(abs, range(9))) == list(range(9))",
    ),
    "ThreadPoolExecutor, at work": Library(
        "from concurrent.futures import ThreadPoolExecutor as T; import threading; e = threading.Event(); t = T(1); f = t.submit(e.wait)",
        "not f.done()",
        refused="thread",
    ),
    "ProcessPoolExecutor": Library(
        "from concurrent.futures import ProcessPoolExecutor as P; p = P(2); list(p.map(abs, range(9)))",
        "list(p.map(abs, range(9))) == list(range(9))",
        told="processes" if sys.version_info < (3, 14) else "",  # later, they come from a fork server
    ),
    "multiprocessing, a new pool": Library(
        "import multiprocessing as m\ndef f():\n    with m.Pool(2) as p: return p.map(abs, [-1, -2])\nf()",
        "f() == [1, 2]",
    ),
    "multiprocessing, the same pool": Library(
        "import multiprocessing as m; p = m.Pool(2); p.map(abs, [-1, -2])",
        "try: p.map(abs, [-1]); r = not in_copy\nexcept ValueError: r = m.Pool(1).map(abs, [-1]) == [1]\nr",
        told="closed",
        remark="it is closed, and a new one works",
    ),
    "multiprocessing, queues": Library(
        "import multiprocessing as m; q = m.Queue(); q.put(1); q.get()",
        "q.put(2); q.get() == 2",
    ),
    "multiprocessing, fork server": Library(
        "import multiprocessing as m; f = lambda: m.get_context('forkserver').Pool(1).map(abs, [-1]); f()",
        "f() == [1]",
    ),
    "asyncio, an own loop": Library(
        "import asyncio; l = asyncio.new_event_loop(); l.run_until_complete(asyncio.to_thread(abs, -1))",
        "l.run_until_complete(asyncio.to_thread(abs, -1)) == 1 and l.run_until_complete(asyncio.sleep(0.01, True))",
    ),
    "threads": Library(
        "import threading; e = threading.Event(); t = threading.Thread(target=e.wait, name='my thread'); t.daemon = True; t.start()",
        "t.is_alive()",
        refused="my thread",
    ),
    "threads that have ended": Library(
        "import threading; t = [threading.Thread(target=abs, args=(-1,)) for _ in range(9)]; [i.start() for i in t]; [i.join() for i in t]",
        "all(not i.is_alive() for i in t)",
    ),
    "subprocess": Library(
        "import subprocess; p = subprocess.Popen(['sleep', '600'])",
        "subprocess.run(['true']).returncode == 0 and (not in_copy or p.wait() == -9)",
        told="sleep",
    ),
    "subprocess, pipes": Library(
        "import subprocess; p = subprocess.Popen(['cat'], stdin=-1, stdout=-1)",
        "not in_copy or p.stdout.read() == b''",
        told="cat",
    ),
    "asyncio, a subprocess": Library(
        "import asyncio; l = asyncio.new_event_loop(); r = l.run_until_complete; p = r(asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1))",
        "not in_copy or r(p.wait()) == -9 and r(p.stdout.read()) == b''",
        told="cat",
    ),
    "open files": Library(
        "f = open('a', 'w+'); f.write('abc'); f.flush(); f.seek(0)",
        "f.read(2) == 'ab' and f.read() == 'c'",
    ),
    "sockets": Library(
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); d, _ = s.accept()",
        "not in_copy or c.recv(1) == b'' and d.recv(1) == b'' and socket.create_server(('127.0.0.1', 0)) is not None",
        told="connection",
        remark="they are closed",
    ),
}


LARGE = (
    "torch",
    "torch, DataLoader",
    "lightgbm",
    "xgboost",
    "OpenMP of LLVM",
    "numba, parallel",
    "grpc",
    "polars",
    "polars, imported",
    "jax",
)
"""Libraries that the slow tests have not got."""

PYTHONS = {
    "sqlite",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "threads",
    "threads that have ended",
    "sockets",
    "open files",
}
"""What belongs to Python."""
