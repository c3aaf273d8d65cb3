"""One module per view: coroutines that take a request and a `Look`, and return a response."""
