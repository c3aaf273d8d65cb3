"""Speed and memory, each beside its floor from the same run. `python -m bench` from the repository's root."""
