"""Runs a notebook by nbclient or papermill, and jupyter_server's gateway client: ``runners.py WHICH URL TOKEN DIR``."""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from jupyter_server.gateway.gateway_client import GatewayClient

MANAGER = "jupyter_server.gateway.managers.GatewayKernelManager"
CELLS = [
    "amount = 2",
    "import pandas as pd\npd.DataFrame({'a': [amount, amount + 1]})",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "from IPython.display import display\nhandle = display('before', display_id=True)\nhandle.update('after')",
    "import sys\nprint('done')\nprint('warned', file=sys.stderr)",
]


def main(which: str, url: str, token: str, directory: Path) -> None:
    """Run the notebook; leave it with its outputs in ``out.ipynb``."""
    client = GatewayClient.instance()
    client.url, client.auth_token = url, token
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])
    book.cells[0].metadata["tags"] = ["parameters"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (cellblock)", "language": "python"}
    if which == "nbclient":
        from nbclient import NotebookClient
        from traitlets import import_item

        NotebookClient(book, kernel_manager_class=import_item(MANAGER), timeout=60).execute()
        nbformat.write(book, directory / "out.ipynb")
        return
    import papermill

    nbformat.write(book, directory / "in.ipynb")
    papermill.execute_notebook(
        directory / "in.ipynb",
        directory / "out.ipynb",
        parameters={"amount": 40},
        kernel_manager_class=MANAGER,
        progress_bar=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]))
