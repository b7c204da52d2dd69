"""Benchmarks: `sluice bench` runs them; the method is in docs/performance.md."""
