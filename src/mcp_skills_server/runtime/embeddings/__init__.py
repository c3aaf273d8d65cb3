"""Semantic search of skills: embedding models, a vector cache and the vector search."""
