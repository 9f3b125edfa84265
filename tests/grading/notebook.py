"""A notebook without a browser: cells run in one IPython shell, and what they showed."""

import io
from contextlib import redirect_stdout

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


class Notebook:
    def __init__(self) -> None:
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(colors="nocolor")
        self.run("import torch\nfrom torch import Tensor\nfrom course_utils import *")

    def run(self, source: str) -> str:
        """Run one cell; the plain text of all it printed and displayed. Errors are raised."""
        with capture_output() as shown, redirect_stdout(io.StringIO()) as printed:
            done = self.shell.run_cell(source, store_history=True)
        done.raise_error()
        texts = [output.data.get("text/plain", "") for output in shown.outputs]
        self.html = "".join(output.data.get("text/html", "") for output in shown.outputs)
        return "\n".join([shown.stdout + printed.getvalue(), *texts]).strip()

    def __getitem__(self, name: str):
        return self.shell.user_ns[name]

    def close(self) -> None:
        InteractiveShell.clear_instance()
