"""TiDB value codecs, one module a format."""
