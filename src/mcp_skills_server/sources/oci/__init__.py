"""OCI source: skills as registry artifacts (OCI image 1.1, distribution API 1.1), pull and push."""
