"""The DAG files that documents show, as a reader copies them."""

import re
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "airflow-dags.md"


def documented_dags() -> dict[str, str]:
    """Texts by DAG id."""
    blocks = re.findall(r"(?:^    .*\n|^\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    files = [textwrap.dedent(block).strip() + "\n" for block in blocks if "    with DAG(" in block]
    return {re.search(r'with DAG\("(\w+)"', text)[1]: text for text in files}
