"""Tools for skill authors: evaluation of triggers, context of a model, notes and reports."""
