"""This server beside its peers and its floors, in turn within each round: `python -m bench.peers`."""
