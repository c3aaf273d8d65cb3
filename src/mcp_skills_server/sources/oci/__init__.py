"""Skills as artifacts of a registry (OCI image 1.1, distribution API 1.1): pulled and pushed."""
