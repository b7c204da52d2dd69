"""A pump as a TiUP package; see `deploy.tiup.tarball`."""
