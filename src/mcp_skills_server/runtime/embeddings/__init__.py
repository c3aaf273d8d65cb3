"""Skills found by what their descriptions mean: models that make vectors of texts, a cache of
these, and the search."""
