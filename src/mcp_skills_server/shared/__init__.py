"""The state that replicas share through Redis: small records, calls to look again, and counts of
requests.

Nothing here knows a skill. The client library is imported when a connection is made, which only
`--redis` asks for.
"""
