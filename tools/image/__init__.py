"""`make image`: the container image is built and tried out, without a Docker engine."""
