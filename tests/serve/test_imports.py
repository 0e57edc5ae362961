"""The API process is light: neither torch nor transformers, and no plugin."""

from __future__ import annotations

import subprocess
import sys


def test_the_http_side_imports_no_torch() -> None:
    program = (
        "import sys, srtkit.serve.app\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'transformers')"
        " or name.startswith('srtkit_plugin')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
