"""Language models over HTTP: the router of adapters alone, and an endpoint that speaks OpenAI's protocol."""
