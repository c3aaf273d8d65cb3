"""One module for each view: a coroutine of the request and of what its viewer sees, which returns
the response."""
