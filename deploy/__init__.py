"""Running Sluice on more than one machine: what containers start, and what describes them."""
