"""Conformance probe: what any server of skills answers, judged by a table of rules."""
