"""The page: what a person sees of the skills in a browser. Imported only where it is on."""
