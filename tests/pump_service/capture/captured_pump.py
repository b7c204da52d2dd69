"""Run a pump that captures.

`python captured_pump.py PD_URL ETCD_URL DATA_DIR START_TS NODE_ID ADDRESS SHARE`
"""

import signal
import sys

from sluice.pump_service.config.settings import CaptureOptions, Config
from sluice.pump_service.server import PumpServer
from sluice.pump_service.store.options import StoreOptions
from sluice.tidb.table_shares import Share

pd_url, etcd_url, data_dir, start_ts, node_id, address, share = sys.argv[1:]
pump = PumpServer(
    Config(
        addr=address,
        advertise_addr=address,
        pd_urls=pd_url,
        data_dir=data_dir,
        node_id=node_id,
        storage=StoreOptions(stop_write_at_available_space=1),
        capture=CaptureOptions(
            enabled=True, start_ts=int(start_ts), memory=1 << 20, share=Share.parse(share)
        ),
    ),
    etcd_url,
)
pump.start()
signal.signal(signal.SIGUSR1, lambda *_: pump.leave("close"))
signal.signal(signal.SIGTERM, lambda *_: pump.leave("pause"))
print("ready", pump.address, flush=True)
while not pump.wait(0.2):
    pass
