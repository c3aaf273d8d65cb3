"""The page to look at: what a person sees of the skills in a browser. Imported only where it is
asked for."""
