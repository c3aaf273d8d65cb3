"""Skills as artifacts of a registry (OCI image specification 1.1, OCI distribution API 1.1): pulled
and pushed."""
