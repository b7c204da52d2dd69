"""``python -m deploy.tiup FOLDER``: the tarball in that folder."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.tiup.tarball import bundle, name_of_tarball, pack


def main() -> int:
    """Make the tarball, and print its path. The folder ``pump`` beside it holds what was packed."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m deploy.tiup FOLDER")
    target = Path(sys.argv[1])
    bundle(target / "pump")
    pack(target / "pump", target / name_of_tarball())
    print(target / name_of_tarball())
    return 0


if __name__ == "__main__":
    sys.exit(main())
