"""Run a pump that holds shares of the tables.

`python share_holder_process.py PD_URL ETCD_URL DATA_DIR ADDRESS SHARES`
"""

import sys

from sluice.pump_service.command import hold_shares
from sluice.pump_service.config.settings import CaptureOptions, Config
from sluice.pump_service.store.options import StoreOptions

if __name__ == "__main__":
    pd_url, etcd_url, data_dir, address, shares = sys.argv[1:]
    sys.exit(
        hold_shares(
            Config(
                addr=address,
                advertise_addr=address,
                pd_urls=pd_url,
                data_dir=data_dir,
                heartbeat_interval=0.3,
                storage=StoreOptions(stop_write_at_available_space=1),
                capture=CaptureOptions(enabled=True, memory=1 << 20, shares=int(shares)),
            ),
            etcd_url,
        )
    )
