"""One module per view: coroutines that take a request and a `Context`, and return a response."""
