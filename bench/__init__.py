"""Benchmarks: `sluice bench` runs them; the method is in docs/how-to/measure.md."""
