"""`make bench-peers`: measure this server, its peers and the SDK floor in interleaved rounds."""
