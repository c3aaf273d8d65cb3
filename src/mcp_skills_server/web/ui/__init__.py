"""The page: a web UI that shows people the skills. Imported only if it is enabled."""
