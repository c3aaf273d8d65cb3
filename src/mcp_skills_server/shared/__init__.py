"""Shared state of replicas in Redis: small records, messages between replicas, and rate limits.

This package knows no skills. The client library is imported on the first connection, so only with
`--redis`.
"""
