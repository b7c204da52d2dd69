"""What may be removed of the relay log and of the archive, and from when to when one can restore."""
