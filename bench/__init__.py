"""This server beside its peers and its floor, in turn within each round: `make bench-peers`."""
