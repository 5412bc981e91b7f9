"""The draft in real engines: prompts are sent as ids, and what the engine counted comes back with every answer."""
