"""`make requirements`: which rule of docs/requirements.md has which test, both ways."""
