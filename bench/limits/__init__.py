"""Bare programs that measure what this machine can do by itself: `python -m sluice.bench.limits`.

What Sluice does on the machine can be given as a share of it. None of the programs shares code
with a stage of Sluice.
"""
