"""As many files as there are tables may be open."""

import subprocess
import sys

_TRY = """
import resource, tempfile
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
from sluice.etl.spark.worker_tuning import raise_nofile_limit
raise_nofile_limit()
held = [tempfile.TemporaryFile() for _ in range(100)]
print(len(held))
"""


def test_a_low_limit_of_the_shell_does_not_hinder() -> None:
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, check=True)
    assert done.stdout == "100\n"
