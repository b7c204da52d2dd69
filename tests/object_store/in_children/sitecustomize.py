"""Every Python that is started by a test with this folder in its path has its folders in the S3
server, see `tests.object_store.moved`: as soon as it loads the storage of folders, and not before.
"""

import importlib.abc
import importlib.util
import os
import sys


class _Moved(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "sluice.relay.storage._local":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        load = found.loader.exec_module

        def and_moved(module):  # type: ignore[no-untyped-def]
            load(module)
            from tests.object_store.moved import move

            move(module.LocalStorage)

        found.loader.exec_module = and_moved
        return found


if os.environ.get("SLUICE_TEST_FOLDERS_ARE_IN"):
    sys.meta_path.insert(0, _Moved())
