from sluice.etl.landing.extract.kernel.plain import Buffer

EDITION: int

def scan(
    data: Buffer, edges: Buffer, commits: Buffer, starts: Buffer, above: int, /
) -> tuple[bytes, bytes, bytes, int, int] | None: ...
def columns(
    data: Buffer,
    commits: Buffer,
    starts: Buffer,
    mutations: bytes,
    changes: bytes,
    begin: int,
    end: int,
    /,
) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]: ...
