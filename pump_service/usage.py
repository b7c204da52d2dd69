"""What `sluice pump --help` prints; apart from the settings, so that printing loads nothing."""

USAGE = """usage: pump [flags]

  -addr host:port                address to listen on (default <local ip>:8250)
  -advertise-addr host:port      address that TiDB, Drainers and Sluice use (default: addr)
  -socket path                   also listen on this Unix socket
  -pd-urls list                  client URLs of PD, with commas (default http://127.0.0.1:2379)
  -data-dir path                 where binlogs are kept (default data.pump)
  -node-id id                    default hostname:port; kept in the data directory from then on
  -heartbeat-interval seconds    (default 2)
  -fake-binlog-interval seconds  a fake binlog is written when nothing came for so long (default 3)
  -prewrite-timeout seconds      a Prewrite of which TiKV knows nothing for so long is rolled back
                                 there (default 600)
  -gc-safepoint-ttl seconds      how long TiKV keeps what tells the end of unfinished transactions
                                 after the pump died (default 86400; 0: not at all)
  -gc days|duration              how long binlogs are kept, such as 7 or 8h (default 7)
  -log-level, -L level           debug, info, warn, error, fatal (default info)
  -log-file path                 default: standard error
  -metrics-addr host:port        Prometheus push gateway (default: none)
  -metrics-interval seconds      (default 15)
  -max-message-size bytes        largest WriteBinlog request (default 2147483647)
  -capture                       read changes from TiKV itself, instead of taking TiDB's binlogs;
                                 [capture] in the file
  -ssl-ca, -ssl-cert, -ssl-key path, -cert-allowed-cn names
  -write-allowed-cn, -read-allowed-cn, -operate-allowed-cn, -scrape-allowed-cn names
  -config path                   pump.toml
  -V                             print the version
"""
