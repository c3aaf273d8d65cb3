"""`make hosts`: what real hosts show their model of this server, measured with a scripted model on loopback."""
