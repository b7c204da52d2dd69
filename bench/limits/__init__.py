"""What the machine at hand can do by itself, so that what Sluice does on it can be told as a share:
`python -m sluice.bench.limits`. The programs here are bare; none shares code with a stage of
Sluice.
"""
