"""`make interop`: independent referees judge the server, and every check is counted here."""
