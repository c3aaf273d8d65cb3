"""Skills as artifacts of a registry (OCI image specification 1.1, OCI distribution API 1.1): read, followed, pushed.

The client is our own, over the connections of `sources`: they check every address before they connect, bound bytes and
time, and every byte is proved by its digest.
"""
