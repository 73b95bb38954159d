"""What jupyter_kernel_test asks of a kernel; ``python -m unittest kernel_suite`` runs it."""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import jupyter_kernel_test


class TestKernel(jupyter_kernel_test.KernelTests):
    """All of its tests but that of the pager: `name?` is displayed, and not a payload, which the protocol has deprecated."""

    kernel_name = "cellblock"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('x', file=sys.stderr)"
    code_generate_error = "raise"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    complete_code_samples = ("1", "print('x')")
    incomplete_code_samples = ("print('''hello", "for x in y:")
    invalid_code_samples = ("import = 7q",)
    completion_samples = ({"text": "zi", "matches": {"zip"}},)
    code_execute_result = ({"code": "1+2+3", "result": "6"},)
    code_display_data = (
        {"code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "mime": "text/html"},
    )
