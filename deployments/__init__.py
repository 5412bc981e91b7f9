"""How eyas is started: the recipes, and the server with the flows that can be started from it."""
